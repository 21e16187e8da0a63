// What every convolution shares: the walk over a filter's taps, the split of the work, the end of a result.

// A stretch of input that is contiguous in memory, in elements relative to the window's first pixel. Weights are
// stored in the same order, so a convolution is a list of dot products.
struct Run {
  int64_t offset;
  int64_t length;
};

// `element` is the size of what the kernel reads, `length` how many of them a group has in one pixel.
inline int make_runs(const Op& op, int element, int length, Run* runs) {
  const bool whole_rows = op.dilation[1] == 1 && op.in.pixel == element * length;
  const int columns = whole_rows ? 1 : op.kernel[1];
  int count = 0;
  for (int y = 0; y < op.kernel[0]; ++y)
    for (int x = 0; x < columns; ++x) {
      const int64_t bytes = y * op.dilation[0] * op.in.row + static_cast<int64_t>(x) * op.dilation[1] * op.in.pixel;
      runs[count++] = {bytes / element, whole_rows ? static_cast<int64_t>(op.kernel[1]) * length : length};
    }
  return count;
}

// Large outputs are split by pixels, so that each worker unpacks all weights but stays in its own rows; small ones
// (a linear layer has one pixel) by blocks of output channels.
struct Split {
  Range blocks, pixels;
};

inline Split split(int blocks, int pixels, const Worker& worker) {
  if (pixels >= 16 * worker.count) return {{0, blocks}, share(pixels, worker)};
  return {share(blocks, worker), {0, pixels}};
}

// Output pixels in reading order. Stepping is cheaper than dividing: a division costs as much as many products here.
struct Walk {
  int y, x, width;

  Walk(const Op& op, int pixel) : y(pixel / op.out.width), x(pixel % op.out.width), width(op.out.width) {}

  void step() {
    if (++x == width) x = 0, ++y;
  }
};

// The first input pixel under the window of an output pixel.
template <class T>
inline const T* window(const Op& op, const Worker& worker, const Walk& pixel, int64_t group_offset) {
  return at<const T>(worker, op.in, pixel.y * op.stride[0] - op.padding[0], pixel.x * op.stride[1] - op.padding[1]) +
         group_offset;
}

// The part of a window that lies inside the image: taps `begin` to `end` along one axis.
inline Range inside(int start, int taps, int dilation, int size) {
  const int begin = start < 0 ? (-start + dilation - 1) / dilation : 0;
  const int reach = start < size ? (size - start - 1) / dilation + 1 : 0;
  return {begin, reach < taps ? reach : taps};
}

// Where a pixel's result goes, and what is added to it.
struct Target {
  float* out;
  const float* other;

  Target(const Op& op, const Worker& worker, const Walk& pixel)
      : out(at<float>(worker, op.out, pixel.y, pixel.x)),
        other(op.has_other ? at<const float>(worker, op.other, pixel.y, pixel.x) : nullptr) {}
};

// out = clamp(sum * scale + bias + other) for up to BLOCK channels from `channel` on.
template <class Sum>
inline void finish(const Op& op, const Target& target, int channel, int channels, Sum sum) {
  float* out = target.out + channel;
  const float* other = target.other ? target.other + channel : nullptr;
  Vec result[VECS];
#pragma GCC unroll 4
  for (int v = 0; v < VECS; ++v) {
    result[v] = sum(v);
    if (op.scale) {
      result[v] *= load(op.scale + channel + v * WIDTH);
      round_now(result[v]);
    }
    if (op.bias) result[v] += load(op.bias + channel + v * WIDTH);
  }
  // Without groups the padding behind the last channel is ours to overwrite; with groups the next one begins there.
  if (channels == BLOCK || op.groups == 1) {
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) {
      if (other) result[v] += load(other + v * WIDTH);
      store(out + v * WIDTH, clamp(result[v], op.low, op.high));
    }
    return;
  }
  float lanes[BLOCK];
  std::memcpy(lanes, result, sizeof lanes);
  for (int i = 0; i < channels; ++i) {
    const float value = lanes[i] + (other ? other[i] : 0.0f);
    out[i] = value < op.low ? op.low : value > op.high ? op.high : value;
  }
}
