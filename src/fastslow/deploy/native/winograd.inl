// 3x3 convolution with 1-bit weights by Winograd's F(2x2, 3x3): 16 products for a square of four outputs instead of
// 36 (Lavin and Gray 2016, https://arxiv.org/abs/1509.09308). The transformed weights are multiples of 1/4, so they
// are exact; results differ from the direct sum by its own rounding only.
//
// Python chooses it for stride 1, even outputs and layers small enough that all transformed weights stay in cache.
// Scratch: weights [block][16][inputs + 1][BLOCK], inputs [16][TILES][padded inputs] and BLOCK more a position,
// products [16][TILES][BLOCK]. The surplus keeps the 16 positions from falling on the same sets of the cache.

constexpr int TILES = 24;  // squares that are transformed at a time

inline int64_t weight_stride(int inputs) { return static_cast<int64_t>(inputs + 1) * BLOCK; }
inline int64_t input_stride(int channels) { return static_cast<int64_t>(TILES) * channels + BLOCK; }

// Rows of G: (1, 0, 0), (1/2, 1/2, 1/2), (1/2, -1/2, 1/2), (0, 0, 1).
inline void transform_weights(const uint16_t* signs, int inputs, float* out) {
  VecI lane[VECS];
  for (int v = 0; v < VECS; ++v)
    for (int i = 0; i < WIDTH; ++i) lane[v][i] = 1 << (v * WIDTH + i);
  for (int c = 0; c < inputs; ++c)
    for (int v = 0; v < VECS; ++v) {
      Vec g[3][3], half[3][4];
      for (int t = 0; t < 9; ++t) {
        const VecI set = ((VecI{} + signs[t * inputs + c]) & lane[v]) != 0;
        g[t / 3][t % 3] = set ? splat(1.0f) : splat(-1.0f);
      }
      for (int i = 0; i < 3; ++i) {
        const Vec ends = g[i][0] + g[i][2];
        half[i][0] = g[i][0];
        half[i][1] = 0.5f * (ends + g[i][1]);
        half[i][2] = 0.5f * (ends - g[i][1]);
        half[i][3] = g[i][2];
      }
      for (int j = 0; j < 4; ++j) {
        const Vec ends = half[0][j] + half[2][j];
        const Vec column[4] = {half[0][j], 0.5f * (ends + half[1][j]), 0.5f * (ends - half[1][j]), half[2][j]};
        for (int i = 0; i < 4; ++i) store(out + (i * 4 + j) * weight_stride(inputs) + c * BLOCK + v * WIDTH, column[i]);
      }
    }
}

// Rows of B': (1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1).
inline void transform_input(const Op& op, const Worker& worker, int y, int x, int channels, float* out) {
  const float* corner = at<const float>(worker, op.in, 2 * y - op.padding[0], 2 * x - op.padding[1]);
  const int64_t row = op.in.row / 4, pixel = op.in.pixel / 4, position = input_stride(channels);
  for (int c = 0; c < channels; c += WIDTH) {
    Vec half[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Vec d[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) d[j] = load(corner + i * row + j * pixel + c);
      half[i][0] = d[0] - d[2];
      half[i][1] = d[1] + d[2];
      half[i][2] = d[2] - d[1];
      half[i][3] = d[1] - d[3];
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      store(out + (0 + j) * position + c, half[0][j] - half[2][j]);
      store(out + (4 + j) * position + c, half[1][j] + half[2][j]);
      store(out + (8 + j) * position + c, half[2][j] - half[1][j]);
      store(out + (12 + j) * position + c, half[1][j] - half[3][j]);
    }
  }
}

// Products of P squares with a block of output channels at one of the 16 positions.
template <int P>
inline void multiply_tiles(const float* x, int channels, int inputs, const float* weight, float* out) {
  Vec sum[P][VECS] = {};
#pragma GCC unroll 4
  for (int c = 0; c < inputs; ++c) {
    Vec w[VECS];
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) w[v] = load(weight + c * BLOCK + v * WIDTH);
#pragma GCC unroll 12
    for (int p = 0; p < P; ++p) {
      const Vec input = splat(x[p * channels + c]);
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) sum[p][v] += w[v] * input;
    }
  }
#pragma GCC unroll 12
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) store(out + p * BLOCK + v * WIDTH, sum[p][v]);
}

template <int P>
inline void multiply_rest(int rest, const float* x, int channels, int inputs, const float* weight, float* out) {
  if constexpr (P > 0) {
    if (rest == P)
      multiply_tiles<P>(x, channels, inputs, weight, out);
    else
      multiply_rest<P - 1>(rest, x, channels, inputs, weight, out);
  }
}

// Rows of A': (1, 1, 1, 0), (0, 1, -1, -1).
inline void transform_output(const Op& op, const Worker& worker, int y, int x, int channel, int channels,
                             const float* products) {
  Vec result[2][2][VECS];
  for (int v = 0; v < VECS; ++v) {
    Vec half[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      Vec m[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) m[i] = load(products + (i * 4 + j) * TILES * BLOCK + v * WIDTH);
      half[0][j] = m[0] + m[1] + m[2];
      half[1][j] = m[1] - m[2] - m[3];
    }
    for (int i = 0; i < 2; ++i) {
      result[i][0][v] = half[i][0] + half[i][1] + half[i][2];
      result[i][1][v] = half[i][1] - half[i][2] - half[i][3];
    }
  }
  Walk pixel(op, 0);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      pixel.y = 2 * y + i;
      pixel.x = 2 * x + j;
      finish(op, Target(op, worker, pixel), channel, channels, [&](int v) { return result[i][j][v]; });
    }
}

void convolve_winograd(const Op& op, const Worker& worker) {
  const int inputs = op.in.channels, outputs = op.out.channels;
  const int blocks = (outputs + BLOCK - 1) / BLOCK, channels = padded(inputs), columns = op.out.width / 2;
  const int64_t block_size = 16 * weight_stride(inputs);
  auto* weights = reinterpret_cast<float*>(worker.scratch);
  float* transformed = weights + blocks * block_size;
  float* products = transformed + 16 * input_stride(channels);
  const Range range = share(op.out.height / 2 * columns, worker);
  if (range.begin == range.end) return;
  for (int b = 0; b < blocks; ++b)
    transform_weights(static_cast<const uint16_t*>(op.weight) + static_cast<int64_t>(b) * 9 * inputs, inputs,
                      weights + b * block_size);
  for (int first = range.begin; first < range.end; first += TILES) {
    const int count = range.end - first < TILES ? range.end - first : TILES;
    for (int t = 0; t < count; ++t)
      transform_input(op, worker, (first + t) / columns, (first + t) % columns, channels, transformed + t * channels);
    for (int b = 0; b < blocks; ++b) {
      for (int position = 0; position < 16; ++position) {
        const float* x = transformed + position * input_stride(channels);
        const float* weight = weights + b * block_size + position * weight_stride(inputs);
        float* out = products + position * TILES * BLOCK;
        int t = 0;
        for (; t + PIXELS <= count; t += PIXELS)
          multiply_tiles<PIXELS>(x + t * channels, channels, inputs, weight, out + t * BLOCK);
        multiply_rest<PIXELS - 1>(count - t, x + t * channels, channels, inputs, weight, out + t * BLOCK);
      }
      const int channel = b * BLOCK, here = outputs - channel < BLOCK ? outputs - channel : BLOCK;
      for (int t = 0; t < count; ++t)
        transform_output(op, worker, (first + t) / columns, (first + t) % columns, channel, here,
                         products + t * BLOCK);
    }
  }
}
