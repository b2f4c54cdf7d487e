// LocalGroup: ranks that are threads of one process and share its memory.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

class Rendezvous;

struct LocalGroupOptions {
  // Of the ranks, in their order, for messages: "cpu:0". As many as there are ranks.
  std::vector<std::string> names = {};
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// Outlives the collectives that its ranks make. A rank belongs to one thread at a time; different
// ranks may be used at the same time. After a CommError nobody touches the memory of the rank that
// got it any more, and all ranks get the same error until reset().
class LocalGroup final : public Group {
 public:
  explicit LocalGroup(LocalGroupOptions options);
  ~LocalGroup() override;
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const;
  Communicator& rank(int rank) override;

  bool aborted() const;
  // Rounds that were under way are forgotten; their collectives can be started anew.
  void reset() override;

 private:
  std::unique_ptr<Rendezvous> rendezvous_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

}  // namespace lockstep
