/* Everything that is not a matrix product with AVX2; see layer_ops_simd.h. */
#include "compute/kernel/simd_avx2.h"

#include "compute/kernel/layer_ops_simd.h"
