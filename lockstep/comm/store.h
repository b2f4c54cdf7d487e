// Store: small values by key that all workers of a job see. Workers meet here before they have
// communicators: they publish addresses, descriptors and choices.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lockstep {

class Store {
 public:
  virtual ~Store() = default;
  // Sets the value of a key for all workers. From any thread.
  virtual void set(const std::string& key, std::string_view value) = 0;
  // The value of a key, once somebody has set it. CommError, naming the key, after the timeout, or
  // as soon as the job has failed. From any thread.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace lockstep
