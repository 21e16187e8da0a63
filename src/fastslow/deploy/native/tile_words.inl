// Convolution of signs a few pixels at a time, which share the loads of the weights.
//
// The bits of a padded pixel read as -1; the weights under it are added back (`tap_sums`).

// Words are read where they are.
inline void prepare_input(const Op&, const Worker&, Range, uint8_t*) {}

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

inline void finish_words(const Op& op, const Worker& worker, const BitTile& tile, const Walk& pixel,
                         const uint64_t* differ) {
  auto* outside = reinterpret_cast<int*>(tile.scratch);
  const int outside_count = correction_taps(op, pixel, outside);
  finish_pixel(op, worker, tile, pixel, [&](int o) {
    VecI dot = tile.depth - 2 * load_counts(differ + o);
    for (int t = 0; t < outside_count; ++t)
      dot += load_ints(op.tap_sums + static_cast<int64_t>(outside[t]) * padded(op.out.channels) + tile.channel + o);
    return dot;
  });
}

template <int P, int V>
inline void bit_tile(const Op& op, const Worker& worker, const BitTile& tile, int pixel) {
  const uint64_t* x[P];
  Walk walk(op, pixel);
  for (int p = 0; p < P; ++p, walk.step()) x[p] = window<uint64_t>(op, worker, walk, tile.group_offset);
  alignas(64) uint64_t differ[P][V * UNIT];
  count_tile<P, V>(tile.runs, tile.run_count, x, tile.weights, differ);
  walk = Walk(op, pixel);
  for (int p = 0; p < P; ++p, walk.step()) finish_words(op, worker, tile, walk, differ[p]);
}

template <int V>
inline void bit_pixels(const Op& op, const Worker& worker, const BitTile& tile, Range pixels) {
  constexpr int P = 6;
  int pixel = pixels.begin;
  for (; pixel + P <= pixels.end; pixel += P) bit_tile<P, V>(op, worker, tile, pixel);
  for (; pixel + 2 <= pixels.end; pixel += 2) bit_tile<2, V>(op, worker, tile, pixel);
  for (; pixel < pixels.end; ++pixel) bit_tile<1, V>(op, worker, tile, pixel);
}
