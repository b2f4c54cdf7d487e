// LocalGroup: ranks that are threads of one process and share its memory.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

struct LocalGroupOptions {
  // Names of the ranks, in order, for messages: "cpu:0". As many as there are ranks.
  std::vector<std::string> names = {};
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// Outlives the collectives that its ranks make. A rank belongs to one thread at a time; different
// ranks may be used at the same time. After a CommError the memory of the rank that got it is no
// longer touched, and all ranks get the same error until reset().
class LocalGroup final : public Group {
 public:
  explicit LocalGroup(LocalGroupOptions options);
  ~LocalGroup() override;
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const override;
  std::span<const int> local() const override;
  Communicator& rank(int rank) override;
  void abort(const Failure& failure) override;
  std::optional<Failure> failure() const override;
  // Rounds that were in flight are dropped; their collectives can be started again.
  void reset() override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep
