// Counting differing bits by table lookup, for two neighbouring pixels at a time.
//
// 4 channels an element. A byte shuffle is 16 or 32 table lookups at once: the table of an activation nibble maps a
// weight nibble to the number of bits in which they differ. Such a count takes half a byte at most, so the table of two
// pixels' nibbles gives both: one AVX2 instruction looks up 256 products. The sum of three lookups still fits into the
// halves; then they are parted and added up, 9 instructions for 768 products. Counting the bits of a vector after an
// xor takes eight for 256.
constexpr BitLayout LAYOUT = NIBBLES;
using Element = uint8_t;
using Count = uint16_t;
constexpr int SIGNS = 4;
constexpr int UNIT = 32;

#if defined(ISA_AVX2)
constexpr int LANES = 32;
#else
constexpr int LANES = 16;
#endif
using Bytes = uint8_t __attribute__((vector_size(LANES)));
using Words = uint16_t __attribute__((vector_size(LANES)));
constexpr int PARTS = UNIT / LANES;  // vectors in a row of weights

// Activations are bytes: 16 + a nibble of signs, or 0 where the image is padded, which is what a margin that nobody
// writes contains. Padding has rows of its own: it differs from any weights in two bits of four, a dot product of 0.
//
// row[32 b + a][w] = in how many bits the activation a differs from the weights w, + 16 times the same of b.
struct Tables {
  alignas(64) uint8_t row[32 * 32][16];
  constexpr Tables() : row{} {
    for (int pair = 0; pair < 32 * 32; ++pair)
      for (int w = 0; w < 16; ++w) row[pair][w] = static_cast<uint8_t>(count(pair % 32, w) + 16 * count(pair / 32, w));
  }
  static constexpr int count(int activation, int w) {
    if (activation < 16) return 2;
    int bits = 0;
    for (int bit = 0; bit < 4; ++bit) bits += (activation ^ w) >> bit & 1;
    return bits;
  }
};
constexpr Tables tables;

constexpr uint8_t NO_SIGNS = 16;  // an element whose signs are all -1

// Four nibbles in the low halves of four bytes.
constexpr uint32_t spread(uint32_t signs) {
  const uint32_t bytes = (signs | signs << 8) & 0x00FF00FFu;
  return (bytes | bytes << 4) & 0x0F0F0F0Fu;
}

// Up to BLOCK signs of a pixel, from `channel` (a multiple of BLOCK) on.
inline void put_spread(uint8_t* pixel, int channel, int channels, uint32_t bytes) {
  bytes |= NO_SIGNS * 0x01010101u;
  // A size known to the compiler is one store, not a call.
  if (channels == BLOCK)
    std::memcpy(pixel + channel / 4, &bytes, 4);
  else
    std::memcpy(pixel + channel / 4, &bytes, static_cast<size_t>(channels + 3) / 4);
}

inline Words load_words(const uint16_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

#if defined(ISA_AVX2)
inline Words widen(const uint8_t* from) {
  return reinterpret_cast<Words>(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Bytes load_row(uint16_t offset) {
  const auto* row = reinterpret_cast<const __m128i*>(tables.row[0] + offset);
  return reinterpret_cast<Bytes>(_mm256_broadcastsi128_si256(_mm_load_si128(row)));
}
inline Bytes look_up(Bytes row, const uint8_t* weights) {
  // Written out, because the weights must stay memory operands: GCC would rather keep them in registers and spill sums.
  Bytes found;
  asm("vpshufb %[index], %[row], %[found]"
      : [found] "=x"(found)
      : [row] "x"(row), [index] "m"(*reinterpret_cast<const uint8_t(*)[LANES]>(weights)));
  return found;
}
// Keeps sums in their registers, which GCC would otherwise rename on every round.
inline void settle(Bytes& a, Words& b) { asm("" : "+x"(a), "+x"(b)); }
#else
inline Words widen(const uint8_t* from) { return reinterpret_cast<Words>(vmovl_u8(vld1_u8(from))); }
inline Bytes load_row(uint16_t offset) { return reinterpret_cast<Bytes>(vld1q_u8(tables.row[0] + offset)); }
inline Bytes look_up(Bytes row, const uint8_t* weights) {
  return reinterpret_cast<Bytes>(vqtbl1q_u8(reinterpret_cast<uint8x16_t>(row), vld1q_u8(weights)));
}
inline void settle(Bytes&, Words&) {}
#endif

// Even bytes hold the first half of a unit's channels, odd bytes the second.
inline void add_to(uint16_t* sums, Words counts) {
  const auto add = [](uint16_t* to, Words more) {
    more += load_words(to);
    std::memcpy(to, &more, sizeof more);
  };
  add(sums, counts & 255);
  add(sums + UNIT / 2, counts >> 8);
}

// Q pairs of pixels and V units of output channels under `length` nibbles, a multiple of N and at most BYTE_RUN. N
// lookups are added up before the pixels are parted.
template <int N, int Q, int V>
inline void count_piece(const uint16_t* const* x, int64_t offset, const uint8_t* const* weights, int64_t k,
                        int64_t length, uint16_t (*differ)[V * UNIT]) {
  constexpr int VECTORS = V * PARTS;
  Bytes first[Q][VECTORS] = {};
  // In a word: the even byte's count + 256 times the odd byte's, as in `first`, + 16 times what `first` has in the odd
  // byte, because the shift moves that too. Taking it out at the end is cheaper than masking it in every round.
  Words second[Q][VECTORS] = {};
  for (int64_t i = 0; i < length; i += N) {
#pragma GCC unroll 2
    for (int q = 0; q < Q; ++q) {
      Bytes sum[VECTORS];
#pragma GCC unroll 3
      for (int n = 0; n < N; ++n) {
        const Bytes row = load_row(x[q][offset + i + n]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
          const Bytes found = look_up(row, weights[v / PARTS] + (k + i + n) * UNIT + v % PARTS * LANES);
          sum[v] = n == 0 ? found : sum[v] + found;
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        first[q][v] += sum[v] & 15;
        second[q][v] += reinterpret_cast<Words>(sum[v]) >> 4;
        settle(first[q][v], second[q][v]);
      }
    }
  }
#pragma GCC unroll 2
  for (int q = 0; q < Q; ++q)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const int channel = v / PARTS * UNIT + v % PARTS * (LANES / 2);
      const Words counts = reinterpret_cast<Words>(first[q][v]);
      add_to(differ[2 * q] + channel, counts);
      add_to(differ[2 * q + 1] + channel, second[q][v] - (counts >> 8 << 4));
    }
}

constexpr int64_t BYTE_RUN = 63;  // nibbles whose counts, 4 at most each, fit in a byte

template <int Q, int V>
inline void count_pairs(const Run* runs, int run_count, const uint16_t* const* x, const uint8_t* const* weights,
                        uint16_t (*differ)[V * UNIT]) {
  // Vector by vector: for this size GCC makes a slow string instruction of memset.
  constexpr int VECTORS = 2 * Q * V * UNIT * 2 / LANES;
  const Words zero{};
#pragma GCC unroll 32
  for (int i = 0; i < VECTORS; ++i) std::memcpy(differ[0] + i * LANES / 2, &zero, sizeof zero);
  int64_t k = 0;
  for (int r = 0; r < run_count; ++r) {
    const int64_t end = runs[r].offset + runs[r].length;
    int64_t offset = runs[r].offset;
    while (end - offset >= 3) {
      // Not 63 and a short rest: 48 divides the usual runs, three taps of a multiple of 64 channels.
      const int64_t left = (end - offset) / 3 * 3, length = left <= BYTE_RUN ? left : 48;
      count_piece<3, Q, V>(x, offset, weights, k, length, differ);
      offset += length, k += length;
    }
    if (offset < end) count_piece<1, Q, V>(x, offset, weights, k, end - offset, differ);
    k += end - offset;
  }
}
