// Vectors of WIDTH floats through the compiler's vector extension: one source for SSE2, AVX2, AVX-512 and NEON.
// Included by every instruction set's file after it has chosen WIDTH and the target; all names are internal to it.

using Vec = float __attribute__((vector_size(WIDTH * 4)));
using VecI = int32_t __attribute__((vector_size(WIDTH * 4)));

constexpr int VECS = BLOCK / WIDTH;  // vectors in a block of channels

inline Vec load(const float* from) {
  Vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline VecI load_ints(const int32_t* from) {
  VecI value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

inline Vec splat(float value) { return value - Vec{}; }  // unlike + 0, exact for -0: folds to a broadcast

// Keeps the compiler from fusing a product with the sum after it: results then equal numpy's to the last bit.
inline void round_now(Vec& value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
}

inline Vec clamp(Vec value, float low, float high) {
#if defined(ISA_AVX2)
  // NaN stays NaN: of the two operands the instructions return the second where one is NaN.
  return _mm256_min_ps(splat(high), _mm256_max_ps(splat(low), value));
#else
  value = value < low ? splat(low) : value;
  return value > high ? splat(high) : value;
#endif
}

// Bit i is set where lane i is true (all ones).
inline uint32_t lane_mask(VecI truth) {
#if defined(ISA_AVX512)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(truth));
#elif defined(ISA_AVX2)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(truth)));
#else
  uint32_t mask = 0;
  for (int i = 0; i < WIDTH; ++i) mask |= static_cast<uint32_t>(truth[i] & 1) << i;
  return mask;
#endif
}

template <class T>
inline T* at(const Worker& worker, const View& view, int y, int x) {
  return reinterpret_cast<T*>(worker.arena + view.offset + y * view.row + static_cast<int64_t>(x) * view.pixel);
}

struct Range {
  int begin, end;
};

inline Range share(int total, const Worker& worker) {
  const auto cut = [&](int i) { return static_cast<int>(static_cast<int64_t>(total) * i / worker.count); };
  return {cut(worker.index), cut(worker.index + 1)};
}

inline int padded(int channels) { return (channels + BLOCK - 1) / BLOCK * BLOCK; }
