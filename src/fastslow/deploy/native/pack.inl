// Packed signs, in the form that `convolve_bits` reads: from floats (x > 0), and of maximums.

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

// The same straight from the caller's (C, H, W) planes: vectors lie along pixels, so each channel sets one bit of all
// lanes, and a lane is in the end what is written to its pixel.
void pack_image(const Op& op, const Worker& worker) {
  const int pixels = op.out.height * op.out.width;
  const Range mine = share(pixels, worker);
  for (int c = 0; c < op.out.channels; c += BLOCK) {
    const int channels = op.out.channels - c < BLOCK ? op.out.channels - c : BLOCK;
    const float* planes = worker.input + static_cast<int64_t>(c) * pixels;
    Walk walk(op, mine.begin);
    const auto put = [&](uint32_t signs) {
      put_spread(at<uint8_t>(worker, op.out, walk.y, walk.x), c, channels, signs);
      walk.step();
    };
    int pixel = mine.begin;
    for (; pixel + WIDTH <= mine.end; pixel += WIDTH) {
      const auto sign = [&](int i) {
        return (load(planes + static_cast<int64_t>(i) * pixels + pixel) > 0.0f) & static_cast<int32_t>(spread(1u << i));
      };
      VecI signs{};
      if (channels == BLOCK) {
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK; ++i) signs |= sign(i);
      } else {
        for (int i = 0; i < channels; ++i) signs |= sign(i);
      }
      uint32_t lanes[WIDTH];
      std::memcpy(lanes, &signs, sizeof lanes);
      for (const uint32_t lane : lanes) put(lane);
    }
    for (; pixel < mine.end; ++pixel) {
      uint32_t signs = 0;
      for (int i = 0; i < channels; ++i)
        signs |= static_cast<uint32_t>(planes[static_cast<int64_t>(i) * pixels + pixel] > 0.0f) << i;
      put(spread(signs));
    }
  }
}

// The sign of a maximum: +1 where any sign is.
void pool_bits(const Op& op, const Worker& worker) {
  const Range rows = share(op.out.height, worker);
  for (int y = rows.begin; y < rows.end; ++y)
    for (int x = 0; x < op.out.width; ++x) {
      const int top = y * op.stride[0] - op.padding[0], left = x * op.stride[1] - op.padding[1];
      const Range down = inside(top, op.kernel[0], op.dilation[0], op.in.height);
      const Range across = inside(left, op.kernel[1], op.dilation[1], op.in.width);
      uint8_t* out = at<uint8_t>(worker, op.out, y, x);
      std::memset(out, NO_SIGNS, static_cast<size_t>(op.out.pixel));
      for (int i = down.begin; i < down.end; ++i)
        for (int j = across.begin; j < across.end; ++j) {
          const uint8_t* in = at<const uint8_t>(worker, op.in, top + i * op.dilation[0], left + j * op.dilation[1]);
          for (int b = 0; b < op.out.pixel; ++b) out[b] |= in[b];
        }
      for (int b = 0; b < op.out.pixel; ++b) out[b] ^= op.flip[b];
    }
}
