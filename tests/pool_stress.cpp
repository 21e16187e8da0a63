// Many short rounds of work on more threads than cores: what one piece wrote, the next one reads.
#include "pool.h"

#include <cstdio>

using namespace fastslow;

int main() {
  constexpr int size = 64;
  for (const int threads : {1, 2, 4, 7}) {
    Pool pool(threads);
    for (int round = 0; round < 400; ++round) {
      const int64_t pieces = round % 23;
      std::vector<long> even(size, round), odd(size, 0);
      Parts parts(pieces, threads);
      pool.run([&](int thread) {
        for (int64_t piece = 0; piece < pieces; ++piece)
          parts.run(piece, thread, [&](int part) {
            const auto& in = piece % 2 ? odd : even;
            auto& out = piece % 2 ? even : odd;
            for (int i = part; i < size; i += threads) out[i] = in[size - 1 - i] + 1;
          });
      });
      for (const long value : pieces % 2 ? odd : even)
        if (value != round + pieces) {
          std::printf("%d threads, round %d: %ld\n", threads, round, value);
          return 1;
        }
    }
  }
  return 0;
}
