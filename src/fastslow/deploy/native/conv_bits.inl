// Convolution of 1-bit activations with 1-bit weights. A product of signs is -1 where the bits differ, so a dot
// product over K signs is K - 2 * popcount(a xor w).
//
// A padded pixel counts as 0, which no bit can say: `count_nibbles.inl` and `tile_words.inl` tell how it is exact all
// the same. Channels that fill up an element are 0 in activations and weights and never differ.

#if defined(ISA_AVX2) || defined(ISA_NEON)
#include "count_nibbles.inl"
#else
#include "count_words.inl"
#endif

inline void put_signs(uint8_t* pixel, int channel, int channels, uint32_t signs) {
  put_spread(pixel, channel, channels, spread(signs));
}

constexpr int MAX_UNITS = 2;

struct BitTile {
  const Run* runs;
  int run_count;
  const Element* weights[MAX_UNITS];
  int32_t depth;         // signs in one dot product
  int64_t group_offset;  // elements
  int channel, channels;
  uint8_t* scratch;  // behind the runs
};

inline VecI load_counts(const Count* from) {
#if defined(ISA_AVX2)
  return reinterpret_cast<VecI>(_mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
#else
  using Counts = Count __attribute__((vector_size(WIDTH * sizeof(Count))));
  Counts counts;
  std::memcpy(&counts, from, sizeof counts);
  return __builtin_convertvector(counts, VecI);
#endif
}

// From the dot products of one pixel, a vector of them from channel `tile.channel + o` on, to the layer's result.
template <class Dot>
inline void finish_pixel(const Op& op, const Worker& worker, const BitTile& tile, const Walk& pixel, Dot dot) {
  const Target target(op, worker, pixel);
  if (op.packed_out) {
    for (int o = 0; o < tile.channels; o += BLOCK) {
      const int channel = tile.channel + o, channels = tile.channels - o < BLOCK ? tile.channels - o : BLOCK;
      uint32_t signs = 0;
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v)
        signs |= lane_mask(dot(o + v * WIDTH) > load_ints(op.threshold + channel + v * WIDTH)) << (v * WIDTH);
      uint16_t flip;
      std::memcpy(&flip, op.flip + channel / 8, sizeof flip);
      put_signs(reinterpret_cast<uint8_t*>(target.out), channel, channels,
                (signs ^ flip) & (0xFFFFu >> (BLOCK - channels)));
    }
    return;
  }
  if (op.groups > 1 && tile.channels % BLOCK) {
    for (int o = 0; o < tile.channels; o += BLOCK) {
      const int channels = tile.channels - o < BLOCK ? tile.channels - o : BLOCK;
      finish(op, target, tile.channel + o, channels,
             [&](int v) { return __builtin_convertvector(dot(o + v * WIDTH), Vec); });
    }
    return;
  }
  // The same for whole vectors, with a scale and a bias always: this is a good part of a layer with few channels.
  const float *scale = op.scale + tile.channel, *bias = op.bias + tile.channel;
  const float* other = target.other ? target.other + tile.channel : nullptr;
  float* out = target.out + tile.channel;
  const float low = op.low, high = op.high;
  for (int o = 0; o < tile.channels; o += WIDTH) {
    Vec result = __builtin_convertvector(dot(o), Vec) * load(scale + o);
    round_now(result);
    result += load(bias + o);
    if (other) result += load(other + o);
    store(out + o, clamp(result, low, high));
  }
}

#if defined(ISA_AVX2) || defined(ISA_NEON)
#include "tile_pairs.inl"
#else
#include "tile_words.inl"
#endif

void convolve_bits(const Op& op, const Worker& worker) {
  const int inputs = op.in.channels / op.groups, outputs = op.out.channels / op.groups;
  const int elements = (inputs + SIGNS - 1) / SIGNS, units = (outputs + UNIT - 1) / UNIT;
  const int blocks = (units + MAX_UNITS - 1) / MAX_UNITS;
  const int taps = op.kernel[0] * op.kernel[1];
  const int64_t unit_size = static_cast<int64_t>(taps) * elements * UNIT;
  BitTile tile{};
  auto* runs = reinterpret_cast<Run*>(worker.scratch);
  tile.runs = runs;
  tile.scratch = worker.scratch + (taps * sizeof(Run) + 63) / 64 * 64;
  tile.run_count = make_runs(op, sizeof(Element), elements, runs);
  tile.depth = taps * inputs;
  const Split work = split(op.groups * blocks, op.out.height * op.out.width, worker);
  if (work.blocks.begin == work.blocks.end || work.pixels.begin == work.pixels.end) return;
  prepare_input(op, worker, work.pixels, tile.scratch);
  for (int b = work.blocks.begin; b < work.blocks.end; ++b) {
    const int group = b / blocks, unit = b % blocks * MAX_UNITS;
    const int here = units - unit < MAX_UNITS ? units - unit : MAX_UNITS;
    const auto* weights = static_cast<const Element*>(op.weight) + static_cast<int64_t>(group) * units * unit_size;
    for (int v = 0; v < here; ++v) tile.weights[v] = weights + (unit + v) * unit_size;
    tile.group_offset = static_cast<int64_t>(group) * elements;
    tile.channel = group * outputs + unit * UNIT;
    tile.channels = outputs - unit * UNIT < here * UNIT ? outputs - unit * UNIT : here * UNIT;
    if (here == 2)
      bit_pixels<2>(op, worker, tile, work.pixels);
    else
      bit_pixels<1>(op, worker, tile, work.pixels);
  }
}
