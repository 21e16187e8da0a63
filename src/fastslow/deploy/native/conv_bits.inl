// Convolution of 1-bit activations with 1-bit weights. A product of signs is -1 where the bits differ, so a dot
// product over K signs is K - 2 * popcount(a xor w).
//
// A padded pixel must count as 0 but its bits read as -1; the weights under it are added back (`tap_sums`), which
// makes zero padding exact. Channels that fill up a word are 0 in activations and weights and never differ.

#if defined(ISA_AVX2) || defined(ISA_NEON)
#include "count_nibbles.inl"
#else
#include "count_words.inl"
#endif

// The taps of a window that lie outside the image.
inline int correction_taps(const Op& op, const Walk& pixel, int* taps) {
  const int top = pixel.y * op.stride[0] - op.padding[0];
  const int left = pixel.x * op.stride[1] - op.padding[1];
  const int bottom = top + (op.kernel[0] - 1) * op.dilation[0], right = left + (op.kernel[1] - 1) * op.dilation[1];
  if (top >= 0 && left >= 0 && bottom < op.in.height && right < op.in.width) return 0;
  int count = 0;
  for (int y = 0; y < op.kernel[0]; ++y)
    for (int x = 0; x < op.kernel[1]; ++x) {
      const int row = top + y * op.dilation[0], column = left + x * op.dilation[1];
      if (row < 0 || column < 0 || row >= op.in.height || column >= op.in.width)
        taps[count++] = y * op.kernel[1] + x;
    }
  return count;
}

// The counts of differing bits of one pixel, `channels` (at most BLOCK) of them, to the layer's result.
inline void finish_bits(const Op& op, const Target& target, int channel, int channels, int32_t depth,
                        const int* outside, int outside_count, const Count* differ) {
  using Counts = Count __attribute__((vector_size(WIDTH * sizeof(Count))));
  VecI dot[VECS];
  for (int v = 0; v < VECS; ++v) {
    Counts counts;
    std::memcpy(&counts, differ + v * WIDTH, sizeof counts);
    dot[v] = depth - 2 * __builtin_convertvector(counts, VecI);
    for (int t = 0; t < outside_count; ++t) {
      VecI sums;
      std::memcpy(&sums, op.tap_sums + static_cast<int64_t>(outside[t]) * padded(op.out.channels) + channel + v * WIDTH,
                  sizeof sums);
      dot[v] += sums;
    }
  }
  if (!op.packed_out) {
    finish(op, target, channel, channels, [&](int v) { return __builtin_convertvector(dot[v], Vec); });
    return;
  }
  uint32_t signs = 0;
  for (int v = 0; v < VECS; ++v) {
    VecI threshold;
    std::memcpy(&threshold, op.threshold + channel + v * WIDTH, sizeof threshold);
    signs |= lane_mask(dot[v] > threshold) << (v * WIDTH);
  }
  uint16_t flip;
  std::memcpy(&flip, op.flip + channel / 8, sizeof flip);
  signs = (signs ^ flip) & (0xFFFFu >> (BLOCK - channels));
  put_signs(reinterpret_cast<uint8_t*>(target.out), channel, channels, signs);
}

constexpr int MAX_UNITS = 2;

struct BitTile {
  const Run* runs;
  int run_count;
  const Element* weights[MAX_UNITS];
  int32_t depth;         // signs in one dot product
  int64_t group_offset;  // elements
  int channel, channels;
  int* outside;
};

template <int P, int V>
inline void bit_tile(const Op& op, const Worker& worker, const BitTile& tile, int pixel) {
  const Element* x[P];
  Walk walk(op, pixel);
  for (int p = 0; p < P; ++p, walk.step()) x[p] = window<Element>(op, worker, walk, tile.group_offset);
  alignas(64) Count differ[P][V * UNIT];
  count_tile<P, V>(tile.runs, tile.run_count, x, tile.weights, differ);
  walk = Walk(op, pixel);
  for (int p = 0; p < P; ++p, walk.step()) {
    const Target target(op, worker, walk);
    const int outside_count = correction_taps(op, walk, tile.outside);
    for (int o = 0; o < tile.channels; o += BLOCK) {
      const int channels = tile.channels - o < BLOCK ? tile.channels - o : BLOCK;
      finish_bits(op, target, tile.channel + o, channels, tile.depth, tile.outside, outside_count, differ[p] + o);
    }
  }
}

template <int V>
inline void bit_pixels(const Op& op, const Worker& worker, const BitTile& tile, Range pixels) {
  constexpr int P = 6;
  int pixel = pixels.begin;
  for (; pixel + P <= pixels.end; pixel += P) bit_tile<P, V>(op, worker, tile, pixel);
  for (; pixel + 2 <= pixels.end; pixel += 2) bit_tile<2, V>(op, worker, tile, pixel);
  for (; pixel < pixels.end; ++pixel) bit_tile<1, V>(op, worker, tile, pixel);
}

void convolve_bits(const Op& op, const Worker& worker) {
  const int inputs = op.in.channels / op.groups, outputs = op.out.channels / op.groups;
  const int elements = (inputs + SIGNS - 1) / SIGNS, units = (outputs + UNIT - 1) / UNIT;
  const int blocks = (units + MAX_UNITS - 1) / MAX_UNITS;
  const int taps = op.kernel[0] * op.kernel[1];
  const int64_t unit_size = static_cast<int64_t>(taps) * elements * UNIT;
  BitTile tile{};
  auto* runs = reinterpret_cast<Run*>(worker.scratch);
  tile.runs = runs;
  tile.outside = reinterpret_cast<int*>(worker.scratch + taps * sizeof(Run));
  tile.run_count = make_runs(op, sizeof(Element), elements, runs);
  tile.depth = taps * inputs;
  const Split work = split(op.groups * blocks, op.out.height * op.out.width, worker);
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

// x > 0 of every channel, in the form that `convolve_bits` reads.
void pack_signs(const Op& op, const Worker& worker) {
  const int inputs = op.in.channels / op.groups, elements = (inputs + SIGNS - 1) / SIGNS;
  const Range rows = share(op.out.height, worker);
  for (int y = rows.begin; y < rows.end; ++y)
    for (int x = 0; x < op.out.width; ++x)
      for (int g = 0; g < op.groups; ++g) {
        const float* in = at<const float>(worker, op.in, y, x) + g * inputs;
        uint8_t* out = at<uint8_t>(worker, op.out, y, x) + g * elements * sizeof(Element);
        for (int c = 0; c < inputs; c += BLOCK) {
          const int channels = inputs - c < BLOCK ? inputs - c : BLOCK;
          uint32_t signs = 0;
          for (int v = 0; v < VECS; ++v) signs |= lane_mask(load(in + c + v * WIDTH) > 0.0f) << (v * WIDTH);
          put_signs(out, c, channels, signs & (0xFFFFu >> (BLOCK - channels)));
        }
      }
}
