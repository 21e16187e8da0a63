// 64-bit ARM, where NEON is part of the baseline. Compiled, but not yet run on such a machine by us.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>
#include <limits>

#include "program.h"

#define WIDTH 4
#define ISA_NEON
#define NAME "neon"
#define TABLE neon_kernels
#include "kernels.inl"
#endif
