// Convolution of signs by pairs of neighbouring pixels.

// The first byte that any window over `pixels` reads, taking whole rows.
inline const uint8_t* first_byte(const Op& op, const Worker& worker, Range pixels) {
  Walk first(op, pixels.begin);
  first.x = 0;
  return window<uint8_t>(op, worker, first, 0);
}

// A copy of the input in which each element is the offset of the table row of a pixel and the one under the next
// window.
inline void prepare_input(const Op& op, const Worker& worker, Range pixels, uint8_t* scratch) {
  Walk last(op, pixels.end - 1);
  last.x = last.width - 1;
  const int64_t reach = (op.kernel[0] - 1) * op.dilation[0] * op.in.row +
                        static_cast<int64_t>(op.kernel[1] - 1) * op.dilation[1] * op.in.pixel + op.in.pixel;
  const uint8_t* from = first_byte(op, worker, pixels);
  const int64_t size = window<uint8_t>(op, worker, last, 0) + reach - from;
  const int64_t next = static_cast<int64_t>(op.stride[1]) * op.in.pixel;
  for (int64_t i = 0; i < size; i += LANES / 2) {
    Words offsets = widen(from + i) << 4;
    if (i + next < size) offsets |= widen(from + i + next) << 9;
    std::memcpy(scratch + 2 * i, &offsets, sizeof offsets);
  }
}

// How many taps of a window lie outside the image.
inline int outside_taps(const Op& op, const Walk& pixel) {
  const auto taps_inside = [&](int axis, int at, int size) {
    const Range taps = inside(at * op.stride[axis] - op.padding[axis], op.kernel[axis], op.dilation[axis], size);
    return taps.end > taps.begin ? taps.end - taps.begin : 0;
  };
  return op.kernel[0] * op.kernel[1] - taps_inside(0, pixel.y, op.in.height) * taps_inside(1, pixel.x, op.in.width);
}

inline void finish_nibbles(const Op& op, const Worker& worker, const BitTile& tile, const Walk& pixel,
                           const uint16_t* differ) {
  int32_t depth = tile.depth;
  // Padding differs in half of the bits of all its nibbles, also of those that only fill one up.
  const int inputs = op.in.channels / op.groups, filled = -inputs & (SIGNS - 1);
  if (filled) depth += filled * outside_taps(op, pixel);
  finish_pixel(op, worker, tile, pixel, [=](int o) { return depth - 2 * load_counts(differ + o); });
}

template <int Q, int V>
inline void bit_tile(const Op& op, const Worker& worker, const BitTile& tile, const uint8_t* origin, const Walk* first,
                     const bool* second) {
  const auto* copy = reinterpret_cast<const uint16_t*>(tile.scratch);
  const uint16_t* x[Q];
  for (int q = 0; q < Q; ++q) x[q] = copy + (window<uint8_t>(op, worker, first[q], tile.group_offset) - origin);
  alignas(64) uint16_t differ[2 * Q][V * UNIT];
  count_pairs<Q, V>(tile.runs, tile.run_count, x, tile.weights, differ);
  for (int q = 0; q < Q; ++q) {
    Walk pixel = first[q];
    finish_nibbles(op, worker, tile, pixel, differ[2 * q]);
    pixel.step();
    if (second[q]) finish_nibbles(op, worker, tile, pixel, differ[2 * q + 1]);
  }
}

template <int V>
inline void bit_pixels(const Op& op, const Worker& worker, const BitTile& tile, Range pixels) {
  constexpr int Q = 2;
  const uint8_t* origin = first_byte(op, worker, pixels);
  Walk walk(op, pixels.begin);
  for (int pixel = pixels.begin; pixel < pixels.end;) {
    Walk first[Q] = {walk, walk};
    bool second[Q];
    int pairs = 0;
    for (; pairs < Q && pixel < pixels.end; ++pairs) {
      first[pairs] = walk;
      // The last pixel of a row, or of the worker's share, has no partner.
      second[pairs] = walk.x + 1 < walk.width && pixel + 1 < pixels.end;
      for (int i = 0; i <= second[pairs]; ++i, ++pixel) walk.step();
    }
    if (pairs == Q)
      bit_tile<Q, V>(op, worker, tile, origin, first, second);
    else
      bit_tile<1, V>(op, worker, tile, origin, first, second);
  }
}
