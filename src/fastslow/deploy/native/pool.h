// A few threads that run the same function side by side, and how they wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fastslow {

// Where threads wait until something is done. They look for about the length of a small layer, then let others run, then
// sleep: the engine may share its cores, and who keeps asking can hold the very core that the other one needs.
// What `done` reads is written before `open` is called, by operations in a single order (as atomics have by default).
class Gate {
 public:
  template <class Done>
  void wait(Done done) {
    for (int looks = 0; looks < 2300; ++looks) {
      if (done()) return;
      if (looks > 2000) std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++asleep_;
    wake_.wait(lock, done);
    --asleep_;
  }

  void open() {
    if (asleep_ == 0) return;
    { const std::lock_guard<std::mutex> lock(mutex_); }  // or one about to sleep would miss the call
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> asleep_{0};
};

// Pieces of work, one after the other, each in as many parts as there are threads. A thread begins with its own part and
// goes on with those that nobody has begun: one that is late, because its core is taken, keeps the others waiting with
// what it has begun only.
class Parts {
 public:
  Parts(int64_t pieces, int count) : count_(count), begun_(pieces * count), finished_(pieces) {}

  template <class Body>
  void run(int64_t piece, int thread, Body body) {
    for (int i = 0; i < count_; ++i) {
      const int part = (thread + i) % count_;
      if (begun_[piece * count_ + part].exchange(true)) continue;
      body(part);
      if (++finished_[piece] == count_) gate_.open();
    }
    gate_.wait([&] { return finished_[piece] == count_; });
  }

 private:
  const int count_;
  std::vector<std::atomic<bool>> begun_;
  std::vector<std::atomic<int>> finished_;
  Gate gate_;
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

  // Calls body(0) here and body(i) on those threads that come while it runs; returns when all of these are done.
  void run(const std::function<void(int)>& body) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body;
      ++round_;
    }
    wake_.notify_all();
    body(0);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = nullptr;
    }
    gate_.wait([&] { return joined_ == 0; });
  }

 private:
  void serve(int index) {
    for (int seen = 0;;) {
      const std::function<void(int)>* body;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || (body_ && round_ != seen); });
        if (stop_) return;
        seen = round_;
        body = body_;
        ++joined_;
      }
      (*body)(index);
      if (--joined_ == 0) gate_.open();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Gate gate_;
  std::atomic<int> joined_{0};
  const std::function<void(int)>* body_ = nullptr;  // none: who comes now is too late
  int round_ = 0;
  bool stop_ = false;
};

}  // namespace fastslow
