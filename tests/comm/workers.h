// Workers that are threads of this process, each with a group of its own, and stores where they
// meet.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/comm/store.h"

namespace lockstep {

class LocalStore final : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      fail<CommError>("nobody has set {}", key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// A value is a file, which appears whole.
class FolderStore final : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }
  void set(const std::string& key, std::string_view value) override {
    const std::filesystem::path file = path(key);
    const std::filesystem::path part = file.string() + ".part";
    std::ofstream(part, std::ios::binary) << value;
    std::filesystem::rename(part, file);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!std::filesystem::exists(path(key))) {
      if (std::chrono::steady_clock::now() > end) fail<CommError>("nobody has set {}", key);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(path(key), std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path(std::string key) const {
    for (char& letter : key) {
      if (letter == '/' || letter == ' ') letter = '_';
    }
    return folder_ / key;
  }
  std::filesystem::path folder_;
};

inline RemoteGroupOptions remote_group_of(const std::vector<int>& ranks_of_worker,
                                          MakeWire make_wire) {
  RemoteGroupOptions options{.ranks_of_worker = ranks_of_worker, .make_wire = std::move(make_wire)};
  for (const int ranks : ranks_of_worker) {
    for (int i = 0; i < ranks; ++i) {
      options.names.push_back("cpu:" + std::to_string(options.names.size()));
    }
  }
  return options;
}

inline GlooOptions gloo_options(Store& store, int worker, int workers) {
  return {.store = &store, .worker = worker, .workers = workers, .address = "127.0.0.1"};
}

// Calls body(worker) on a thread for each; an exception is a failure of the test.
inline void run_workers(int workers, const std::function<void(int worker)>& body) {
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        body(worker);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Calls body(group, worker) for each, with groups over Gloo.
inline void run_gloo_workers(const std::vector<int>& ranks_of_worker,
                             const std::function<void(Group&, int worker)>& body,
                             std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
  const auto workers = static_cast<int>(ranks_of_worker.size());
  LocalStore store;
  run_workers(workers, [&](int worker) {
    RemoteGroupOptions options =
        remote_group_of(ranks_of_worker, gloo_wires(gloo_options(store, worker, workers)));
    options.timeout = timeout;
    RemoteGroup group(options);
    body(group, worker);
  });
}

}  // namespace lockstep
