// The C interface that Python calls through ctypes, and the loop that runs a program.
#include "program.h"

#include <chrono>
#include <new>

#include "pool.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fastslow {
namespace {

// The instruction sets of this machine, best first.
int available(const Kernels** list) {
  int count = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vpopcntdq"))
    list[count++] = &avx512_kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &avx2_kernels;
#elif defined(__aarch64__)
  list[count++] = &neon_kernels;
#endif
  list[count++] = &scalar_kernels;
  return count;
}

const Kernels* backend(int index) {
  const Kernels* list[3];
  const int count = available(list);
  return index >= 0 && index < count ? list[index] : nullptr;
}

using Clock = std::chrono::steady_clock;

}  // namespace
}  // namespace fastslow

using namespace fastslow;

EXPORT int32_t fastslow_abi() { return ABI_VERSION; }
EXPORT int32_t fastslow_op_size() { return sizeof(Op); }
EXPORT int32_t fastslow_program_size() { return sizeof(Program); }

EXPORT const char* fastslow_backend_name(int32_t index) {
  const Kernels* kernels = backend(index);
  return kernels ? kernels->name : nullptr;
}

EXPORT int32_t fastslow_backend_layout(int32_t index) {
  const Kernels* kernels = backend(index);
  return kernels ? kernels->layout : -1;
}

EXPORT void* fastslow_pool_new(int32_t threads) {
  try {
    return new Pool(threads);
  } catch (...) {  // no memory or no threads left: Python reports it
    return nullptr;
  }
}

EXPORT void fastslow_pool_free(void* pool) { delete static_cast<Pool*>(pool); }

// A batch is spread over the workers image by image, so that an image's activations stay in one core's cache; a single
// image is spread op by op. `seconds`, when given, receives the time spent in each op.
EXPORT int32_t fastslow_run(const Program* program, const float* input, float* output, int64_t batch, double* seconds) {
  const Program& p = *program;
  const Kernels* kernels = backend(p.backend);
  if (!kernels || !p.pool) return 1;
  for (int32_t i = 0; i < p.op_count; ++i)
    if (p.ops[i].kind < LOAD || p.ops[i].kind > POOL_BITS) return 2;
  Pool& pool = *static_cast<Pool*>(p.pool);
  const int workers = pool.size();
  // Part `index` of `count` of an op, with `own` as the executing thread's region; `arena` is that of the image.
  const auto execute = [&](const Op& op, int index, int count, uint8_t* arena, uint8_t* own, int64_t image) {
    const Worker worker{index, count, arena, own + p.scratch, input + image * p.input_size,
                        output + image * p.output_size};
    kernels->table[op.kind](op, worker);
  };
  if (batch >= workers && !seconds) {
    std::atomic<int64_t> next{0};
    const auto body = [&](int thread) {
      uint8_t* mine = p.memory + thread * p.region;
      for (int64_t image; (image = next.fetch_add(1)) < batch;)
        for (int32_t i = 0; i < p.op_count; ++i) execute(p.ops[i], 0, 1, mine, mine, image);
    };
    if (workers == 1)
      body(0);
    else
      pool.run(body);
    return 0;
  }
  Parts parts(batch * p.op_count, workers);
  pool.run([&](int thread) {
    uint8_t* own = p.memory + thread * p.region;
    for (int64_t image = 0; image < batch; ++image)
      for (int32_t i = 0; i < p.op_count; ++i) {
        const auto start = seconds ? Clock::now() : Clock::time_point{};
        parts.run(image * p.op_count + i, thread,
                  [&](int part) { execute(p.ops[i], part, workers, p.memory, own, image); });
        if (seconds && thread == 0) seconds[i] += std::chrono::duration<double>(Clock::now() - start).count();
      }
  });
  return 0;
}
