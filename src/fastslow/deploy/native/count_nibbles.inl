// Counting differing bits by table lookup.
//
// 4 channels an element. A byte shuffle is 16 or 32 table lookups at once: the table of an activation nibble maps a
// weight nibble to the number of bits in which they differ. So two AVX2 instructions (shuffle, add) count 128
// products; counting the bits of a vector after the xor takes eight for 256.
constexpr BitLayout LAYOUT = NIBBLES;
using Element = uint8_t;
using Count = uint16_t;
constexpr int SIGNS = 4;
constexpr int UNIT = 32;
constexpr int64_t BYTE_RUN = 60;  // nibbles whose counts, 4 at most each, fit in a byte; whole steps of 4

struct Tables {
  alignas(64) uint8_t row[16][16];
  constexpr Tables() : row{} {
    for (int a = 0; a < 16; ++a)
      for (int w = 0; w < 16; ++w)
        for (int bit = 0; bit < 4; ++bit) row[a][w] = static_cast<uint8_t>(row[a][w] + ((a ^ w) >> bit & 1));
  }
};
constexpr Tables tables;

// Up to BLOCK signs of a pixel, from `channel` (a multiple of BLOCK) on.
inline void put_signs(uint8_t* pixel, int channel, int channels, uint32_t signs) {
  // Four nibbles spread over the high halves of four bytes.
  uint32_t bytes = (signs | signs << 8) & 0x00FF00FFu;
  bytes = ((bytes | bytes << 4) & 0x0F0F0F0Fu) << 4;
  // A size known to the compiler is one store, not a call.
  if (channels == BLOCK)
    std::memcpy(pixel + channel / 4, &bytes, 4);
  else
    std::memcpy(pixel + channel / 4, &bytes, static_cast<size_t>(channels + 3) / 4);
}

#if defined(ISA_AVX2)
struct Bytes {
  __m256i value;
};
struct Row {
  __m256i value;
};
inline Bytes load_bytes(const uint8_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
inline Row load_row(const uint8_t* from) {
  return {_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)))};
}
inline void add_lookup(Bytes& sum, Row row, Bytes index) {
  // As one piece of assembler, because it updates the sum in place: left to itself, GCC renames the sums on every
  // round and spills half of them.
  __m256i found;
  asm("vpshufb %[index], %[row], %[found]\n\tvpaddb %[found], %[sum], %[sum]"
      : [sum] "+x"(sum.value), [found] "=&x"(found)
      : [row] "x"(row.value), [index] "x"(index.value));
}
inline void add_wide(uint16_t* total, Bytes sum) {
  auto* to = reinterpret_cast<__m256i*>(total);
  const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(sum.value));
  const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(sum.value, 1));
  _mm256_storeu_si256(to, _mm256_add_epi16(_mm256_loadu_si256(to), low));
  _mm256_storeu_si256(to + 1, _mm256_add_epi16(_mm256_loadu_si256(to + 1), high));
}
#else
struct Bytes {
  uint8x16_t low, high;
};
struct Row {
  uint8x16_t value;
};
inline Bytes load_bytes(const uint8_t* from) { return {vld1q_u8(from), vld1q_u8(from + 16)}; }
inline Row load_row(const uint8_t* from) { return {vld1q_u8(from)}; }
inline void add_lookup(Bytes& sum, Row row, Bytes index) {
  sum.low = vaddq_u8(sum.low, vqtbl1q_u8(row.value, index.low));
  sum.high = vaddq_u8(sum.high, vqtbl1q_u8(row.value, index.high));
}
inline void add_wide(uint16_t* total, Bytes sum) {
  vst1q_u16(total, vaddw_u8(vld1q_u16(total), vget_low_u8(sum.low)));
  vst1q_u16(total + 8, vaddw_u8(vld1q_u16(total + 8), vget_high_u8(sum.low)));
  vst1q_u16(total + 16, vaddw_u8(vld1q_u16(total + 16), vget_low_u8(sum.high)));
  vst1q_u16(total + 24, vaddw_u8(vld1q_u16(total + 24), vget_high_u8(sum.high)));
}
#endif

// `length` nibbles, a multiple of UNROLL, counted in bytes and then added to the totals. Whole steps of UNROLL in a
// loop of their own: the compiler keeps the sums in registers, and instruction supply, which bounds this loop, is 1.5
// times as good.
template <int UNROLL, int P, int V>
inline void count_piece(const uint8_t* const* x, int64_t offset, const uint8_t* const* weights, int64_t k,
                        int64_t length, uint16_t (*differ)[V * UNIT]) {
  const uint8_t* table = tables.row[0];
  Bytes sum[P][V] = {};
  for (int64_t i = 0; i < length; i += UNROLL) {
#pragma GCC unroll 4
    for (int j = 0; j < UNROLL; ++j) {
      Bytes w[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) w[v] = load_bytes(weights[v] + (k + i + j) * UNIT);
#pragma GCC unroll 6
      for (int p = 0; p < P; ++p) {
        const Row row = load_row(table + x[p][offset + i + j]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) add_lookup(sum[p][v], row, w[v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) add_wide(differ[p] + v * UNIT, sum[p][v]);
}

template <int P, int V>
inline void count_tile(const Run* runs, int run_count, const uint8_t* const* x, const uint8_t* const* weights,
                       uint16_t (*differ)[V * UNIT]) {
  std::memset(differ, 0, P * sizeof *differ);
  int64_t k = 0;
  for (int r = 0; r < run_count; ++r) {
    const int64_t end = runs[r].offset + runs[r].length;
    int64_t offset = runs[r].offset;
    while (end - offset >= 4) {
      const int64_t left = (end - offset) & ~int64_t{3}, length = left < BYTE_RUN ? left : BYTE_RUN;
      count_piece<4, P, V>(x, offset, weights, k, length, differ);
      offset += length, k += length;
    }
    if (offset < end) count_piece<1, P, V>(x, offset, weights, k, end - offset, differ);
    k += end - offset;
  }
}
