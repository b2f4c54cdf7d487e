// WorkerClocks: how the clocks of the workers differ from the chief's, from round trips.
//
// In an exchange every worker tells when, by its own clock, it began. What another one tells was
// true after this worker began the exchange before (which the other could not end without this
// one's words) and before this one ended. Each exchange thus bounds the difference from both sides;
// over many, the bounds close in, and what remains between them is the error. Clocks also run at
// different speeds: differences found early and late in a run give the drift.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

// What to add to a worker's clock to get the chief's, at a time of the worker's clock.
struct OffsetToChief {
  std::int64_t at_ns = 0;
  double ns = 0;
  double error_ns = 0;
};

class WorkerClocks {
 public:
  // Tells all workers what each of them says, by worker: World::exchange.
  using Exchange = std::function<std::vector<std::string>(std::string_view)>;
  using Clock = std::function<std::int64_t()>;

  explicit WorkerClocks(int worker, Clock clock = {});

  // Finds the difference now, by so many exchanges. Collective.
  void measure(const Exchange& exchange, int rounds = 16);
  // A time of this worker's clock on the chief's, and how far that may be off.
  double on_chief(std::int64_t ns) const;
  double error_ns() const;
  const std::vector<OffsetToChief>& offsets() const { return offsets_; }

 private:
  int worker_;
  Clock clock_;
  std::vector<OffsetToChief> offsets_;  // in the order in which they were found
};

}  // namespace lockstep
