// What all kernels of the slow-net share: its parameters as records, and work split into tasks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace fastslow {

// The parameters of one channel, side by side; all of d_model 1 and dt_rank 1. Gradients have the same layout.
template <int STATES, int TAPS>
struct Record {
    static constexpr int filter = 0;              // conv.weight * in_proj of x, oldest tap first
    static constexpr int bias = TAPS;             // conv.bias
    static constexpr int to_dt = bias + 1;        // x_proj, its row for dt
    static constexpr int to_B = to_dt + 1;        // x_proj, its rows for B
    static constexpr int to_C = to_B + STATES;    // x_proj, its rows for C
    static constexpr int dt_weight = to_C + STATES;
    static constexpr int dt_bias = dt_weight + 1;
    static constexpr int A = dt_bias + 1;
    static constexpr int D = A + STATES;
    static constexpr int out = D + 1;             // out_proj * W_b
    static constexpr int gate = out + 1;          // in_proj of z
    static constexpr int size = gate + 1;
};

struct Net {
    const float* records;  // (channels, Record::size)
    float token_weight;    // W_a
    int channels;
    bool zoh;
};

// A range of weights of one layer, in the per-weight layout.
struct Task {
    int start, stop;
    float lre;    // the layer's embedding
    float scale;  // the unit in which its gradients are seen
};

struct PerWeightCall {
    Net net;
    const float* history;  // (tokens - 1, weights), oldest first
    size_t weights;
    int tokens;
    const Task* tasks;
    int task_count;
    int threads;
    float* out;              // (weights)
    const float* cotangent;  // (weights), or null: forward only
    double* partial;         // (task_count, channels * Record::size + 2): each task's gradients, then of W_a and LRE
};

// One layer of the concatenated layout.
struct Layer {
    int64_t start;      // its first column in the history
    const int* starts;  // (channels, states): the first token that matters to each; null: token 0
    int size;
    float lre;
    float scale;
    int unused;
};

struct ConcatCall {
    Net net;
    const float* history;  // (rows, weights), oldest first
    size_t weights;
    int rows;
    const Layer* layers;
    int layer_count;
    int threads;
    float* out;              // (weights)
    const float* cotangent;  // (weights), or null: forward only
    double* partial;         // (layer_count, channels * Record::size + 2)
};

// 64-byte aligned scratch memory of one thread.
class Scratch {
public:
    explicit Scratch(size_t floats)
        : memory_(static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t(64)))), next_(memory_) {}
    ~Scratch() { ::operator delete(memory_, std::align_val_t(64)); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    template <typename T>
    T* take(size_t count) {
        T* taken = reinterpret_cast<T*>(next_);
        next_ += (count * sizeof(T) + 63) / 64 * 16;
        return taken;
    }

private:
    float* memory_;
    float* next_;
};

// Calls worker(each_task) on up to `threads` threads; there each_task(f) calls f(task) until no task is left. Which thread
// takes which task must not matter to the result.
template <typename Worker>
void run_tasks(int tasks, int threads, Worker worker) {
    std::atomic<int> next{0};
    auto run = [&] {
        worker([&](auto&& f) {
            for (int task = next++; task < tasks; task = next++) f(task);
        });
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads && i < tasks; i++) others.emplace_back(run);
    run();
    for (auto& thread : others) thread.join();
}

}  // namespace fastslow
