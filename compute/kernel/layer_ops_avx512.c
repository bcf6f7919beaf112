/* Everything that is not a matrix product with AVX-512; see layer_ops_simd.h. */
#include "compute/kernel/simd_avx512.h"

#include "compute/kernel/layer_ops_simd.h"
