// The kernels of one instruction set. The including file defines WIDTH (floats a vector), NAME, TABLE and ISA_*
// and has already told the compiler which instructions it may use. Everything lives in an unnamed namespace: a
// function compiled for AVX-512 must never be picked by the linker for a machine without it.

namespace fastslow {
namespace {

#include "vector.inl"

#include "convolve.inl"

#include "conv_float.inl"

#include "winograd.inl"

#include "conv_bits.inl"

#include "pack.inl"

#include "elementwise.inl"

#include "transpose.inl"

}  // namespace

extern const Kernels TABLE;
const Kernels TABLE = {
    NAME,
    LAYOUT,
    {load_image, store_result, convolve_float<false>, convolve_float<true>, convolve_bits, pack_signs, pool<true>,
     pool<false>, mean, add, affine, prelu, sign, flatten, copy, convolve_winograd,
     pack_image, pool_bits},
};

}  // namespace fastslow
