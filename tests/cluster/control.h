// Helpers for the tests of the control plane: clients as threads, and failures that can be awaited.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/control_client.h"
#include "lockstep/cluster/control/control_server.h"

namespace lockstep {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Long enough for any event that is going to come.
inline constexpr seconds kHang(60);

// Keeps what arrives until somebody asks for it.
template <class T>
class Mailbox {
 public:
  void put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  // The first value that the condition holds for.
  T wait(const std::function<bool(const T&)>& condition = [](const T&) { return true; }) {
    std::unique_lock lock(mutex_);
    std::optional<T> found;
    const bool came = changed_.wait_for(lock, kHang, [&] {
      for (const T& each : values_) {
        if (condition(each)) {
          found = each;
          return true;
        }
      }
      return false;
    });
    if (!came) throw std::runtime_error("nothing came");
    return *found;
  }
  T nth(std::size_t n) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kHang, [&] { return values_.size() > n; })) {
      throw std::runtime_error("nothing came");
    }
    return values_[n];
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

using Failures = Mailbox<Failure>;
using Events = Mailbox<ControlEvent>;

inline ControlServerOptions server_options(int workers, Events* events = nullptr) {
  ControlServerOptions options{.workers = workers, .secret = "a secret of the tests"};
  if (events != nullptr) {
    options.on_event = [events](const ControlEvent& event) { events->put(event); };
  }
  return options;
}

inline ControlClientOptions client_options(const std::string& address, int worker) {
  return {.address = address,
          .worker = worker,
          .secret = "a secret of the tests",
          .identity = "host:pid " + std::to_string(worker),
          .join_timeout = kHang};
}

// Runs body(i) on n threads, and throws the first exception of any.
inline void on_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) {
        errors[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// All workers of a server, joined. Their failures go to mailboxes.
class Workers {
 public:
  Workers(const std::string& address, int n,
          const std::function<void(ControlClientOptions&)>& change = {})
      : clients_(static_cast<std::size_t>(n)), failures_(static_cast<std::size_t>(n)) {
    on_threads(n, [&](int i) {
      ControlClientOptions options = client_options(address, i);
      if (change) change(options);
      auto& client = clients_[static_cast<std::size_t>(i)];
      client = std::make_unique<ControlClient>(options);
      auto& failures = failures_[static_cast<std::size_t>(i)];
      failures = std::make_unique<Failures>();
      client->on_failure([box = failures.get()](const Failure& failure) { box->put(failure); });
    });
  }
  ~Workers() {
    on_threads(static_cast<int>(clients_.size()),
               [&](int i) { clients_[static_cast<std::size_t>(i)].reset(); });
  }
  ControlClient& operator[](int i) { return *clients_[static_cast<std::size_t>(i)]; }
  Failures& failures(int i) { return *failures_[static_cast<std::size_t>(i)]; }
  void destroy(int i) { clients_[static_cast<std::size_t>(i)].reset(); }

 private:
  std::vector<std::unique_ptr<ControlClient>> clients_;
  std::vector<std::unique_ptr<Failures>> failures_;
};

// The text of the error of type E that the function throws.
template <class E>
std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

inline void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace lockstep
