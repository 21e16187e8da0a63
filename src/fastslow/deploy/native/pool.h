// A few threads that run the same function side by side, and a barrier for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fastslow {

// Spins for about the length of a small layer, then lets others run: the engine may share its cores.
template <class Done>
inline void wait_until(Done done) {
  for (int spins = 0; !done(); ++spins)
    if (spins > 2000) std::this_thread::yield();
}

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}

  void wait() {
    const int phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      wait_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
    }
  }

 private:
  const int count_;
  std::atomic<int> arrived_{0}, phase_{0};
};

// Not reentrant: the Python engine holds a lock around each run.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(0) here and body(1) ... body(size() - 1) on the threads; returns when all are done.
  void run(const std::function<void(int)>& body) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body;
      busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
      ++round_;
    }
    wake_.notify_all();
    body(0);
    wait_until([&] { return busy_.load(std::memory_order_acquire) == 0; });
  }

 private:
  void serve(int index) {
    for (int seen = 0;;) {
      const std::function<void(int)>* body;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
        body = body_;
      }
      (*body)(index);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> busy_{0};
  const std::function<void(int)>* body_ = nullptr;
  int round_ = 0;
  bool stop_ = false;
};

}  // namespace fastslow
