// The baseline of the platform: runs everywhere the library was compiled for.
#include <cstring>
#include <limits>

#include "program.h"

#define WIDTH 4
#define NAME "scalar"
#define TABLE scalar_kernels
#include "kernels.inl"
