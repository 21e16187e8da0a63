// Everything that is not a convolution. These are bound by memory; the code is the plain loop over whole vectors
// (channels are padded to BLOCK, and what the padding holds is never read as a result).

// Calls body(y, x, channel) for every vector of the output.
template <class Body>
inline void each_vector(const Op& op, const Worker& worker, Body body) {
  const int channels = padded(op.out.channels);
  const Range rows = share(op.out.height, worker);
  for (int y = rows.begin; y < rows.end; ++y)
    for (int x = 0; x < op.out.width; ++x)
      for (int c = 0; c < channels; c += WIDTH) store(at<float>(worker, op.out, y, x) + c, body(y, x, c));
}

template <bool MAX>
void pool(const Op& op, const Worker& worker) {
  const int channels = padded(op.out.channels);
  const Range rows = share(op.out.height, worker);
  for (int y = rows.begin; y < rows.end; ++y)
    for (int x = 0; x < op.out.width; ++x) {
      const int top = y * op.stride[0] - op.padding[0], left = x * op.stride[1] - op.padding[1];
      const Range down = inside(top, op.kernel[0], op.dilation[0], op.in.height);
      const Range across = inside(left, op.kernel[1], op.dilation[1], op.in.width);
      int count = (down.end - down.begin) * (across.end - across.begin);
      if (op.count_pad) {
        // A window may reach past the padding on the far side; those pixels never count.
        const auto span = [&](int start, int axis, int size) {
          const int stop = start + op.kernel[axis], limit = size + op.padding[axis];
          return (stop < limit ? stop : limit) - start;
        };
        count = span(top, 0, op.in.height) * span(left, 1, op.in.width);
      }
      float* out = at<float>(worker, op.out, y, x);
      for (int c = 0; c < channels; c += WIDTH) {
        Vec result = splat(MAX ? -std::numeric_limits<float>::infinity() : 0.0f);
        for (int i = down.begin; i < down.end; ++i) {
          const float* in = at<const float>(worker, op.in, top + i * op.dilation[0], left) + c;
          for (int j = across.begin; j < across.end; ++j) {
            const Vec value = load(in + static_cast<int64_t>(j) * op.dilation[1] * (op.in.pixel / 4));
            if constexpr (MAX)
              result = (value > result) | (value != value) ? value : result;  // NaN stays, as in torch
            else
              result += value;
          }
        }
        if constexpr (!MAX) result /= splat(static_cast<float>(count));
        store(out + c, clamp(result, op.low, op.high));
      }
    }
}

void mean(const Op& op, const Worker& worker) {
  if (worker.index != 0) return;
  const float pixels = static_cast<float>(op.in.height) * static_cast<float>(op.in.width);
  for (int c = 0; c < padded(op.out.channels); c += WIDTH) {
    Vec sum{};
    for (int y = 0; y < op.in.height; ++y)
      for (int x = 0; x < op.in.width; ++x) sum += load(at<const float>(worker, op.in, y, x) + c);
    store(at<float>(worker, op.out, 0, 0) + c, clamp(sum / splat(pixels), op.low, op.high));
  }
}

void add(const Op& op, const Worker& worker) {
  each_vector(op, worker, [&](int y, int x, int c) {
    const Vec sum = load(at<const float>(worker, op.in, y, x) + c) + load(at<const float>(worker, op.other, y, x) + c);
    return clamp(sum, op.low, op.high);
  });
}

void affine(const Op& op, const Worker& worker) {
  each_vector(op, worker, [&](int y, int x, int c) {
    Vec value = load(at<const float>(worker, op.in, y, x) + c);
    if (op.scale) {
      value *= load(op.scale + c);
      round_now(value);
    }
    if (op.bias) value += load(op.bias + c);
    if (op.has_other) value += load(at<const float>(worker, op.other, y, x) + c);
    return clamp(value, op.low, op.high);
  });
}

void prelu(const Op& op, const Worker& worker) {
  each_vector(op, worker, [&](int y, int x, int c) {
    const Vec value = load(at<const float>(worker, op.in, y, x) + c);
    return value > 0.0f ? value : value * load(op.scale + c);
  });
}

void sign(const Op& op, const Worker& worker) {
  each_vector(op, worker, [&](int y, int x, int c) {
    return load(at<const float>(worker, op.in, y, x) + c) > 0.0f ? splat(1.0f) : splat(-1.0f);
  });
}

// Input pixel (i * stride) lands on output pixel (i + pixel_shift), input channel c on output channel
// (c + channel_shift). What is not covered is left alone: it is zero, or another COPY of the same value covers it.
void copy(const Op& op, const Worker& worker) {
  const int height = (op.in.height + op.stride[0] - 1) / op.stride[0];
  const int width = (op.in.width + op.stride[1] - 1) / op.stride[1];
  const Range rows = share(height, worker);
  for (int y = rows.begin; y < rows.end; ++y)
    for (int x = 0; x < width; ++x)
      std::memcpy(at<float>(worker, op.out, y + op.pixel_shift[0], x + op.pixel_shift[1]) + op.channel_shift,
                  at<const float>(worker, op.in, y * op.stride[0], x * op.stride[1]),
                  sizeof(float) * static_cast<size_t>(op.in.channels));
}
