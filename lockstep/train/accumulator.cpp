#include "lockstep/train/accumulator.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<PerReplica> Accumulator::run(const std::vector<PerReplica>& arguments, MicroForm form) {
  // Whatever fails, the next micro-batch begins a step.
  const std::int64_t added = std::exchange(added_, 0);
  const std::int64_t rows = std::exchange(rows_, 0);
  Function::MicroRun how{.form = form,
                         .accumulated = added > 0,
                         .first_row = rows,
                         .accumulators = accumulators_.get()};
  std::vector<PerReplica> results = function_.run_on_replicas(strategy_, arguments, how);
  if (form == MicroForm::Add) {
    added_ = added + 1;
    rows_ = rows + how.rows;
  }
  return results;
}

PerReplica Accumulator::only(std::vector<PerReplica> results) {
  require(results.size() <= 1,
          "[accumulator] the body has {} results: add_all and update_all give them all",
          results.size());
  return results.empty() ? PerReplica() : std::move(results.front());
}

}  // namespace lockstep
