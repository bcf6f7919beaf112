/* The matrix products with NEON; see matmul_simd.h. */
#include "compute/kernel/simd_neon.h"

#include "compute/kernel/matmul_mx_simd.h"
#include "compute/kernel/matmul_simd.h"
#include "compute/kernel/matmul_turned_simd.h"
