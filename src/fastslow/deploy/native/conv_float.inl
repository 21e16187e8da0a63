// Convolution of float activations with float weights, or with 1-bit weights that are expanded to +-1.0 one block of
// output channels at a time: they stay packed in memory and are floats only while they are in cache.
//
// Weights are [group][block][tap and channel][BLOCK]: floats, or one uint16 whose bit i is the sign of channel i.

// PIXELS * VECS accumulators stay in registers: enough to hide the latency of the multiply-add units.
#if WIDTH == 16
constexpr int PIXELS = 12;
#elif WIDTH == 8
constexpr int PIXELS = 6;
#elif defined(ISA_NEON)
constexpr int PIXELS = 6;
#else
constexpr int PIXELS = 3;
#endif

// What is the same for all pixels of one block of output channels.
struct FloatTile {
  const Run* runs;
  int run_count;
  const float* weight;
  int64_t group_offset;  // floats
  int channel, channels;
};

template <int P>
inline void float_tile(const Op& op, const Worker& worker, const FloatTile& tile, int pixel) {
  const float* x[P];
  Walk walk(op, pixel);
  for (int p = 0; p < P; ++p, walk.step()) x[p] = window<float>(op, worker, walk, tile.group_offset);
  const float* weight = tile.weight;
  Vec sum[P][VECS] = {};
  for (int r = 0; r < tile.run_count; ++r) {
    const int64_t offset = tile.runs[r].offset, length = tile.runs[r].length;
#pragma GCC unroll 4
    for (int64_t i = 0; i < length; ++i, weight += BLOCK) {
      Vec w[VECS];
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) w[v] = load(weight + v * WIDTH);
#pragma GCC unroll 12
      for (int p = 0; p < P; ++p) {
        const Vec input = splat(x[p][offset + i]);
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v) sum[p][v] += w[v] * input;
      }
    }
  }
  walk = Walk(op, pixel);
#pragma GCC unroll 12
  for (int p = 0; p < P; ++p, walk.step())
    finish(op, Target(op, worker, walk), tile.channel, tile.channels, [&](int v) { return sum[p][v]; });
}

// One pixel alone is bound by the latency of its sums, not by arithmetic: four of them run side by side.
template <>
inline void float_tile<1>(const Op& op, const Worker& worker, const FloatTile& tile, int pixel) {
  const Walk walk(op, pixel);
  const float* x = window<float>(op, worker, walk, tile.group_offset);
  const float* weight = tile.weight;
  Vec sum[4][VECS] = {};
  for (int r = 0; r < tile.run_count; ++r) {
    const float* input = x + tile.runs[r].offset;
    const int64_t length = tile.runs[r].length;
    int64_t i = 0;
    for (; i + 4 <= length; i += 4, weight += 4 * BLOCK)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v) sum[k][v] += load(weight + k * BLOCK + v * WIDTH) * input[i + k];
    for (; i < length; ++i, weight += BLOCK)
      for (int v = 0; v < VECS; ++v) sum[0][v] += load(weight + v * WIDTH) * input[i];
  }
  finish(op, Target(op, worker, walk), tile.channel, tile.channels,
         [&](int v) { return (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]); });
}

template <int P>
inline void float_rest(const Op& op, const Worker& worker, const FloatTile& tile, int pixel, int rest) {
  if constexpr (P > 0) {
    if (rest == P)
      float_tile<P>(op, worker, tile, pixel);
    else
      float_rest<P - 1>(op, worker, tile, pixel, rest);
  }
}

inline void expand_signs(const uint16_t* signs, int64_t count, float* weight) {
  VecI lane[VECS];
  for (int v = 0; v < VECS; ++v)
    for (int i = 0; i < WIDTH; ++i) lane[v][i] = 1 << (v * WIDTH + i);
  const VecI minus_one = VecI{} + static_cast<int32_t>(0xBF800000u);
  const VecI sign_bit = VecI{} + static_cast<int32_t>(0x80000000u);
  for (int64_t k = 0; k < count; ++k)
    for (int v = 0; v < VECS; ++v) {
      const VecI set = ((VecI{} + signs[k]) & lane[v]) != 0;
      const VecI value = minus_one ^ (set & sign_bit);
      std::memcpy(weight + k * BLOCK + v * WIDTH, &value, sizeof value);
    }
}

template <bool SIGNS>
void convolve_float(const Op& op, const Worker& worker) {
  const int inputs = op.in.channels / op.groups, outputs = op.out.channels / op.groups;
  const int blocks = (outputs + BLOCK - 1) / BLOCK;
  const int taps = op.kernel[0] * op.kernel[1];
  const int64_t depth = static_cast<int64_t>(taps) * inputs;
  auto* runs = reinterpret_cast<Run*>(worker.scratch);
  auto* expanded = reinterpret_cast<float*>(worker.scratch + (taps * sizeof(Run) + 63) / 64 * 64);
  FloatTile tile{};
  tile.runs = runs;
  tile.run_count = make_runs(op, sizeof(float), inputs, runs);
  const Split work = split(op.groups * blocks, op.out.height * op.out.width, worker);
  // Float weights need no expanding, so all blocks can visit a few pixels before the next ones: the input stays in cache.
  const int chunk = SIGNS ? work.pixels.end - work.pixels.begin : 16 * PIXELS;
  for (int start = work.pixels.begin; start < work.pixels.end; start += chunk) {
    const int stop = work.pixels.end - start < chunk ? work.pixels.end : start + chunk;
    for (int b = work.blocks.begin; b < work.blocks.end; ++b) {
      if constexpr (SIGNS) {
        expand_signs(static_cast<const uint16_t*>(op.weight) + b * depth, depth, expanded);
        tile.weight = expanded;
      } else {
        tile.weight = static_cast<const float*>(op.weight) + b * depth * BLOCK;
      }
      const int group = b / blocks, first = b % blocks * BLOCK;
      tile.channel = group * outputs + first;
      tile.channels = outputs - first < BLOCK ? outputs - first : BLOCK;
      tile.group_offset = static_cast<int64_t>(group) * inputs;
      int pixel = start;
      for (; pixel + PIXELS <= stop; pixel += PIXELS) float_tile<PIXELS>(op, worker, tile, pixel);
      float_rest<PIXELS - 1>(op, worker, tile, pixel, stop - pixel);
    }
  }
}
