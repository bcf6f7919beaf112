/* The matrix products with AVX-512; see matmul_simd.h. */
#include "compute/kernel/simd_avx512.h"

#include "compute/kernel/matmul_mx_simd.h"
#include "compute/kernel/matmul_simd.h"
#include "compute/kernel/matmul_turned_simd.h"
