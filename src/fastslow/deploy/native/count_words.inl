// Counting differing bits in words.
//
// 64 channels an element, 16 output channels side by side: one VPOPCNTDQ instruction counts 512 products.
constexpr BitLayout LAYOUT = WORDS;
using Element = uint64_t;
using Count = uint64_t;
constexpr int SIGNS = 64;  // channels in an element
constexpr int UNIT = 16;   // output channels in a block of weights

constexpr uint8_t NO_SIGNS = 0;  // a byte of an element whose signs are all -1

constexpr uint32_t spread(uint32_t signs) { return signs; }

// Up to BLOCK signs of a pixel, from `channel` (a multiple of BLOCK) on.
inline void put_spread(uint8_t* pixel, int channel, int channels, uint32_t signs) {
  // A size known to the compiler is one store, not a call.
  if (channels == BLOCK)
    std::memcpy(pixel + channel / 8, &signs, 2);
  else
    std::memcpy(pixel + channel / 8, &signs, static_cast<size_t>(channels + 7) / 8);
}

template <int P, int V>
inline void count_tile(const Run* runs, int run_count, const uint64_t* const* x, const uint64_t* const* weights,
                       uint64_t (*differ)[V * UNIT]) {
#if defined(ISA_AVX512)
  __m512i sum[P][2 * V] = {};
  for (int64_t r = 0, k = 0; r < run_count; ++r)
#pragma GCC unroll 2
    for (int64_t i = 0; i < runs[r].length; ++i, k += UNIT)
#pragma GCC unroll 8
      for (int v = 0; v < 2 * V; ++v) {
        const __m512i w = _mm512_loadu_si512(weights[v / 2] + k + v % 2 * 8);
#pragma GCC unroll 6
        for (int p = 0; p < P; ++p) {
          const __m512i a = _mm512_set1_epi64(static_cast<int64_t>(x[p][runs[r].offset + i]));
          sum[p][v] = _mm512_add_epi64(sum[p][v], _mm512_popcnt_epi64(_mm512_xor_si512(a, w)));
        }
      }
  std::memcpy(differ, sum, sizeof sum);
#else
  std::memset(differ, 0, P * sizeof *differ);
  for (int64_t r = 0, k = 0; r < run_count; ++r)
    for (int64_t i = 0; i < runs[r].length; ++i, k += UNIT)
      for (int p = 0; p < P; ++p)
        for (int o = 0; o < V * UNIT; ++o)
          differ[p][o] += __builtin_popcountll(x[p][runs[r].offset + i] ^ weights[o / UNIT][k + o % UNIT]);
#endif
}
