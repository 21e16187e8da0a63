// Between the caller's (C, H, W) planes and channels-last pixels.

// `rows` x `columns` floats from `in` to their transpose in `out`.
inline void transpose_plain(const float* in, int64_t in_stride, float* out, int64_t out_stride, int rows, int columns) {
  for (int c = 0; c < columns; ++c)
    for (int r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
}

#if defined(ISA_AVX2) || defined(ISA_AVX512)
inline void transpose8x8(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * in_stride);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

inline void transpose(const float* in, int64_t in_stride, float* out, int64_t out_stride, int rows, int columns) {
  int r = 0;
  for (; r + 8 <= rows; r += 8) {
    int c = 0;
    for (; c + 8 <= columns; c += 8)
      transpose8x8(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    transpose_plain(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride, 8, columns - c);
  }
  transpose_plain(in + r * in_stride, in_stride, out + r, out_stride, rows - r, columns);
}
#else
inline void transpose(const float* in, int64_t in_stride, float* out, int64_t out_stride, int rows, int columns) {
  transpose_plain(in, in_stride, out, out_stride, rows, columns);
}
#endif

// Calls body(y, pixels) for stretches of a worker's pixels: whole rows, or all of them where no margin parts the rows
// (28 pixels don't fill vectors, 28 rows of them do).
template <class Body>
inline void each_stretch(const View& view, const Worker& worker, Body body) {
  const Range rows = share(view.height, worker);
  if (view.row == static_cast<int64_t>(view.width) * view.pixel) {
    body(rows.begin, (rows.end - rows.begin) * view.width);
  } else {
    for (int y = rows.begin; y < rows.end; ++y) body(y, view.width);
  }
}

void load_image(const Op& op, const Worker& worker) {
  const int64_t plane = static_cast<int64_t>(op.out.height) * op.out.width;
  each_stretch(op.out, worker, [&](int y, int pixels) {
    transpose(worker.input + static_cast<int64_t>(y) * op.out.width, plane, at<float>(worker, op.out, y, 0),
              op.out.pixel / 4, op.out.channels, pixels);
  });
}

inline void to_planes(const Op& op, const Worker& worker, float* out) {
  const int64_t plane = static_cast<int64_t>(op.in.height) * op.in.width;
  each_stretch(op.in, worker, [&](int y, int pixels) {
    transpose(at<const float>(worker, op.in, y, 0), op.in.pixel / 4, out + static_cast<int64_t>(y) * op.in.width, plane,
              pixels, op.in.channels);
  });
}

void store_result(const Op& op, const Worker& worker) { to_planes(op, worker, worker.output); }

void flatten(const Op& op, const Worker& worker) { to_planes(op, worker, at<float>(worker, op.out, 0, 0)); }
