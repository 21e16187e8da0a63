// The contract between Python and the native engine.
//
// Python validates a packed file, plans its memory and lowers it to a flat array of `Op`; `fastslow_run` executes
// that array. Everything an op touches is described by it, so the kernels hold no state and allocate nothing.
// `fastslow/deploy/native.py` mirrors these structures field by field: change both together and raise ABI_VERSION.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastslow {

constexpr int32_t ABI_VERSION = 4;

// Output channels are computed in blocks, and the channels of a float value are padded to a multiple of this, so
// that no vector kernel has a remainder: two AVX2 registers, one AVX-512 register, four NEON registers.
constexpr int BLOCK = 16;

enum Kind : int32_t {
  LOAD = 0,         // the caller's (C, H, W) image -> a channels-last value
  STORE = 1,        // a value -> the caller's (C, H, W) result
  CONV_FLOAT = 2,   // float weights
  CONV_SIGNS = 3,   // 1-bit weights, float activations
  CONV_BITS = 4,    // 1-bit weights, 1-bit activations
  PACK_SIGNS = 5,   // float -> 1-bit activations
  MAX_POOL = 6,
  AVERAGE_POOL = 7,
  MEAN = 8,         // over all pixels
  ADD = 9,          // out = activation(in + other)
  AFFINE = 10,      // out = activation(in * scale + bias), either may be absent
  PRELU = 11,       // scale holds the slope of each channel
  SIGN = 12,        // out = in > 0 ? +1 : -1
  FLATTEN = 13,     // (H, W, C) -> a vector in (C, H, W) order
  COPY = 14,        // strided pixels and shifted channels: slices, zero pads, concatenations
  CONV_WINOGRAD = 15,  // CONV_SIGNS for 3x3 kernels with stride 1
  PACK_IMAGE = 16,     // LOAD and PACK_SIGNS in one
  POOL_BITS = 17,      // MAX_POOL of packed signs: their disjunction, xor `flip`, which is laid out as a pixel
};

// A value in the arena, channels last. Values that a padded convolution reads carry a margin of zero pixels that
// nobody writes: `offset` is that of pixel (0, 0), and reading rows -1, -2 ... is legal down to the margin.
struct View {
  int64_t offset;  // bytes
  int64_t row;     // bytes from a row to the next
  int32_t pixel;   // bytes from a pixel to the next
  int32_t height, width, channels;
};

struct Op {
  int32_t kind;
  int32_t has_other;    // a residual value is added before the clamp
  int32_t packed_out;   // CONV_BITS: write signs for the next CONV_BITS instead of floats
  int32_t count_pad;    // AVERAGE_POOL: padded pixels count in the divisor
  View in, other, out;
  int32_t kernel[2], stride[2], padding[2], dilation[2];
  int32_t groups;
  int32_t channel_shift;  // COPY: in's channel 0 lands on this channel of out
  int32_t pixel_shift[2]; // COPY: in's pixel (0, 0) lands on this pixel of out
  float low, high;        // the clamp of the result; -inf and +inf when there is none
  const void* weight;     // layout depends on the kernel: see `Kernels`
  const float* scale;     // per output channel, or null; CONV_BITS has both
  const float* bias;
  const int32_t* tap_sums;  // CONV_BITS in WORDS: sum of the +-1 weights, [tap][output channel]
  const int32_t* threshold; // CONV_BITS, packed_out: out bit = (dot > threshold) != flip
  const uint8_t* flip;      // one bit a channel; POOL_BITS: see there
};

// What stays the same from run to run. One pointer to it crosses from Python in place of nine arguments: their
// conversion takes as long as a small layer.
struct Program {
  int32_t backend, op_count;
  void* pool;
  const Op* ops;
  uint8_t* memory;  // for each thread `region` bytes: an arena, and scratch from `scratch` on
  int64_t region, scratch;
  int64_t input_size, output_size;  // floats a sample
};

struct Worker {
  int index, count;  // this worker's share of the op
  uint8_t* arena;
  uint8_t* scratch;
  const float* input;
  float* output;
};

using Kernel = void (*)(const Op&, const Worker&);

// How an instruction set wants its 1-bit operands.
enum BitLayout : int32_t {
  WORDS = 0,    // activations: 64 channels a uint64; weights: [block of 16][word][16] uint64
  NIBBLES = 1,  // activations: 4 channels a byte, 16 + their bits (0 is padding); weights: [block of 32][nibble][32]
                // uint8, where byte 2 i is output channel i of the block and byte 2 i + 1 channel i + 16
};

struct Kernels {
  const char* name;
  BitLayout layout;
  Kernel table[POOL_BITS + 1];
};

extern const Kernels scalar_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
#endif

}  // namespace fastslow
