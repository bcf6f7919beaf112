/* The matrix products with AVX2; see matmul_simd.h. */
#include "compute/kernel/simd_avx2.h"

#include "compute/kernel/matmul_mx_simd.h"
#include "compute/kernel/matmul_simd.h"
#include "compute/kernel/matmul_turned_simd.h"
