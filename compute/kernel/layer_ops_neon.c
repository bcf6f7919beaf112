/* Everything that is not a matrix product with NEON; see layer_ops_simd.h. */
#include "compute/kernel/simd_neon.h"

#include "compute/kernel/layer_ops_simd.h"
