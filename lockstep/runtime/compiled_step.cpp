#include "lockstep/runtime/compiled_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/random.h"

namespace lockstep {
namespace {

Tensor find_input(Executor& executor, const std::string& name) {
  return executor.has_input(name) ? executor.input(name) : Tensor();
}

// Whether a graph casts an input to class numbers, as class_labels does for sparse losses and
// metrics.
bool reads_classes(const Graph& graph, const std::string& input) {
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Cast || graph.type(node.outputs[0]).dtype != DType::I64) continue;
    ValueId source = node.inputs[0];
    for (;;) {
      const Node& from = graph.producer(source);
      if (from.op != Op::Reshape && from.op != Op::Select) break;
      source = from.inputs[from.op == Op::Select ? 1 : 0];
    }
    const auto is_source = [&](const auto& entry) {
      return entry.first == input && entry.second == source;
    };
    if (std::ranges::any_of(graph.inputs(), is_source)) return true;
  }
  return false;
}

}  // namespace

RankStep::RankStep(StepSignature signature, std::unique_ptr<Executor> executor,
                   const std::string& classes)
    : signature_(std::move(signature)), executor_(std::move(executor)) {
  for (const StepInput& input : signature_.inputs) {
    inputs_.push_back(
        {.memory = find_input(*executor_, input.name), .class_numbers = input.name == classes});
  }
  random_state_ = find_input(*executor_, kRandomStateInput);
  rank_ = find_input(*executor_, kReplicaInput);
  accumulated_ = find_input(*executor_, kAccumulatedInput);
  for (const auto& [name, id] : plan().graph.outputs()) {
    const Place where = plan().values[static_cast<std::size_t>(id)].place;
    outputs_.push_back(where == Place::Variable ? Tensor() : executor_->output(name));
  }
}

Tensor RankStep::output(std::size_t place, std::uint64_t run) const {
  executor_->wait(run);
  if (outputs_[place].defined()) return outputs_[place];
  return executor_->output(plan().graph.outputs()[place].first);
}

void RankStep::feed(std::size_t place, const Tensor& source, std::int64_t first_row) {
  Input& input = inputs_[place];
  if (!input.memory.defined() || input.memory.bytes() == 0) return;
  const Shape& shape = input.memory.shape();
  const std::size_t bytes = input.memory.bytes();
  std::size_t offset = 0;
  if (shape.rank() > 0) {
    if (input.class_numbers && is_floating(source.dtype())) {
      expect_class_numbers(source.rows(first_row, shape[0]), first_row);
    }
    offset = static_cast<std::size_t>(first_row) * (bytes / static_cast<std::size_t>(shape[0]));
  }
  const std::string& name = signature_.inputs[place].name;
  if (source.buffer()->device().shares_host_memory()) {
    if (executor_->bind_input(name, source.buffer(), source.offset() + offset)) return;
    executor_->await_inputs();
    std::memcpy(input.memory.raw(), source.raw() + offset, bytes);
  } else {
    executor_->await_inputs();
    input.memory.copy_from(source);
  }
}

void RankStep::run(const RunOptions& options) {
  if (random_state_.defined() || rank_.defined() || accumulated_.defined()) {
    executor_->await_inputs();
  }
  if (random_state_.defined()) {
    const std::span<std::int64_t> state = random_state_.values<std::int64_t>();
    state[0] = options.step;
    state[1] = options.first_row;
  }
  if (rank_.defined()) rank_.values<std::int64_t>()[0] = options.rank;
  if (accumulated_.defined()) accumulated_.values<float>()[0] = options.accumulated ? 1.0F : 0.0F;
  executor_->run(options.inputs);
}

Piece CompiledStep::last_rows(int local) const {
  const auto i = static_cast<std::size_t>(local);
  return {micro_batches.empty() ? pieces[i].begin : micro_batches.back().pieces[i].end,
          pieces[i].end};
}

std::vector<const Plan*> CompiledStep::plans() const {
  std::vector<const Plan*> all;
  for (const MicroBatch& each : micro_batches) all.push_back(&each.ranks.front()->plan());
  all.push_back(&plan());
  return all;
}

void CompiledStep::run_micro_batch(Session& session, int local, const Feeding& feed, Inputs inputs,
                                   std::size_t turn) {
  const auto i = static_cast<std::size_t>(local);
  const bool last = turn == micro_batches.size();
  RankStep& step = *(last ? ranks : micro_batches[turn].ranks)[i];
  const Piece rows = last ? last_rows(local) : micro_batches[turn].pieces[i];
  feed(local, step, rows);
  try {
    step.run({.step = session.step,
              .first_row = rows.begin,
              .rank = session.world().rank(local),
              .accumulated = accumulated || turn > 0,
              .inputs = inputs});
    (last ? runs : micro_batches[turn].runs)[i] = step.executor().runs();
  } catch (const DataError& error) {
    if (session.world().size() == 1 && micro_batches.empty()) throw;
    // What a device that runs behind the host finds was in an earlier micro-batch.
    if (!micro_batches.empty() && !session.device().shares_host_memory()) throw;
    fail<DataError>("rows {} to {} of the batch: {}", rows.begin, rows.end - 1, error.what());
  }
}

void CompiledStep::run_rank(Session& session, int local, const Feeding& feed, Inputs inputs,
                            std::size_t begin, std::size_t end) {
  for (std::size_t turn = begin; turn < end; ++turn) {
    run_micro_batch(session, local, feed, inputs, turn);
  }
}

void CompiledStep::run_turns(Session& session, const Feeding& feed, Inputs inputs,
                             const Between& between) {
  told.clear();
  const bool tells = session.world().workers() > 1 && session.device().shares_host_memory();
  const std::size_t turns = micro_batches.size() + 1;
  // Only a device that runs behind the host has a step before this one to finish.
  const bool pauses = between && turns > 1 && !session.device().shares_host_memory();
  try {
    if (pauses) {
      std::vector<char> fed(ranks.size(), 0);
      const Feeding noting = [&](int local, RankStep& step, const Piece& rows) {
        feed(local, step, rows);
        fed[static_cast<std::size_t>(local)] = 1;
      };
      try {
        session.run([&](int local) { run_rank(session, local, noting, inputs, 0, 1); });
      } catch (const DataError& error) {
        if (std::ranges::count(fed, 0) == 0) between(&error);  // not in what was fed just now
        throw;
      }
      between(nullptr);
    }
    const auto rest = [&](int local) {
      run_rank(session, local, feed, inputs, pauses ? 1 : 0, turns);
    };
    if (tells) {
      told = session.run_and_exchange(rest, [this] { return scalars(); });
    } else {
      session.run(rest);
    }
  } catch (...) {
    session.resync();
    throw;
  }
}

bool CompiledStep::is_for(std::span<const StepSignature> signatures) const {
  return std::ranges::equal(
      ranks, signatures, {}, [](const RankStep* step) -> const auto& { return step->signature(); });
}

// Of the micro-batches that one executor runs, the last is waited for: the others were before it.
void CompiledStep::wait_for_rank(std::size_t i) const {
  for (std::size_t turn = 0; turn < micro_batches.size(); ++turn) {
    const MicroBatch& each = micro_batches[turn];
    const bool runs_again = std::any_of(
        micro_batches.begin() + static_cast<std::ptrdiff_t>(turn) + 1, micro_batches.end(),
        [&](const MicroBatch& later) { return later.ranks[i] == each.ranks[i]; });
    if (!runs_again) each.ranks[i]->executor().wait(each.runs[i]);
  }
  ranks[i]->executor().wait(runs[i]);
}

void CompiledStep::wait() const {
  for (std::size_t i = 0; i < ranks.size(); ++i) wait_for_rank(i);
}

void CompiledStep::abandon() const noexcept {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    try {
      wait_for_rank(i);
    } catch (const Error&) {
      // Of a step after one that failed.
    }
  }
}

std::vector<Tensor> CompiledStep::outputs(std::size_t place) const {
  std::vector<Tensor> values;
  if (!micro_batches.empty()) wait();  // for errors in the data of the others
  for (std::size_t i = 0; i < ranks.size(); ++i) values.push_back(ranks[i]->output(place, runs[i]));
  return values;
}

std::size_t CompiledStep::told_outputs() const {
  constexpr std::size_t kMost = 5;  // a loss, its weight, and norms of gradients
  const auto& outputs = plan().graph.outputs();
  std::size_t count = 0;
  for (; count < std::min(kMost, outputs.size()); ++count) {
    const ValueType& type = plan().graph.type(outputs[count].second);
    if (type.shape.rank() > 0 || !is_floating(type.dtype)) break;
  }
  return count;
}

// Output by output, rank by rank.
std::string CompiledStep::scalars() const {
  std::string bytes;
  if (!micro_batches.empty()) wait();
  for (std::size_t place = 0; place < told_outputs(); ++place) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double value = ranks[i]->output(place, runs[i]).item();
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  return bytes;
}

double CompiledStep::sum(Session& session, std::size_t place) const {
  double total = 0;
  for (const double value : values(session, place)) total += value;
  return total;
}

std::vector<double> CompiledStep::values(Session& session, std::size_t place) const {
  std::vector<double> all;
  const auto add = [&](std::string_view doubles) {
    for (std::size_t at = 0; at < doubles.size(); at += sizeof(double)) {
      double value = 0;
      std::memcpy(&value, doubles.data() + at, sizeof(double));
      all.push_back(value);
    }
  };
  if (!told.empty() && place < told_outputs()) {
    for (const std::string& theirs : told) {
      const std::size_t bytes = theirs.size() / told_outputs();
      add(std::string_view(theirs).substr(place * bytes, bytes));
    }
    return all;
  }
  if (session.world().workers() == 1) {
    if (!micro_batches.empty()) wait();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      all.push_back(ranks[i]->output(place, runs[i]).item());
    }
    return all;
  }
  // Reading waits for the step, which may have failed on one worker.
  const auto own = [&] {
    std::string mine;
    if (!micro_batches.empty()) wait();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double value = ranks[i]->output(place, runs[i]).item();
      mine.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return mine;
  };
  for (const std::string& theirs : session.world().gather(own)) add(theirs);
  return all;
}

Tensor CompiledStep::all_rows(Session& session, std::size_t place) const {
  Tensor whole;
  const auto read = [&] {
    const std::vector<Tensor> mine = outputs(place);
    whole = mine.size() == 1 ? on_host(mine[0]) : concatenate_rows(mine, "predict");
  };
  if (session.world().workers() == 1) {
    read();
    return whole;
  }
  const std::vector<std::string> all = session.world().gather([&] {
    read();
    return std::string(reinterpret_cast<const char*>(whole.raw()), whole.bytes());
  });
  std::size_t bytes = 0;
  for (const std::string& theirs : all) bytes += theirs.size();
  const std::size_t row =
      size_of(whole.dtype()) * static_cast<std::size_t>(whole.shape().with(0, 1).elements());
  Tensor rows(whole.dtype(), whole.shape().with(0, static_cast<std::int64_t>(bytes / row)));
  std::byte* to = rows.raw();
  for (const std::string& theirs : all) {
    if (!theirs.empty()) std::memcpy(to, theirs.data(), theirs.size());
    to += theirs.size();
  }
  return rows;
}

RankStep* StepCache::find(int rank, const StepSignature& signature) {
  const auto found = std::ranges::find_if(steps_, [&](const Entry& entry) {
    return entry.rank == rank && entry.step.signature() == signature;
  });
  if (found == steps_.end()) return nullptr;
  steps_.splice(steps_.begin(), steps_, found);
  return &steps_.front().step;
}

std::vector<RankStep*> StepCache::find_all(std::span<const StepSignature> signatures) {
  std::vector<RankStep*> ranks;
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    ranks.push_back(find(static_cast<int>(i), signatures[i]));
  }
  return ranks;
}

bool StepCache::holds(const Session& session, std::span<const StepSignature> signatures,
                      const MicroBatches& micro_batches) const {
  if (layout_version_ != session.layout_version()) return false;
  const auto has_all = [&](std::span<const StepSignature> wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const bool found = std::ranges::any_of(steps_, [&](const Entry& entry) {
        return entry.rank == static_cast<int>(i) && entry.step.signature() == wanted[i];
      });
      if (!found) return false;
    }
    return true;
  };
  return has_all(signatures) && std::ranges::all_of(micro_batches.kinds, has_all);
}

std::size_t StepCache::arena_bytes() const {
  std::size_t most = 0;
  for (const Entry& entry : steps_) most = std::max(most, entry.step.plan().arena_bytes);
  return most;
}

CompiledStep& StepCache::get(Session& session, const StepSource& source,
                             std::span<const StepSignature> signatures,
                             std::span<const Piece> pieces, std::optional<bool> missing,
                             const MicroBatches& micro_batches) {
  ensure(std::ssize(pieces) == session.local_size() && signatures.size() == pieces.size(),
         "{} signatures and {} pieces for {} ranks", signatures.size(), pieces.size(),
         session.local_size());
  if (layout_version_ != session.layout_version()) clear();
  layout_version_ = session.layout_version();
  step_.planned = false;
  step_.accumulated = false;
  step_.pieces.assign(pieces.begin(), pieces.end());
  step_.runs.assign(pieces.size(), 0);
  step_.ranks = find_all(signatures);
  std::vector<std::vector<RankStep*>> kinds;
  for (const std::vector<StepSignature>& kind : micro_batches.kinds) {
    kinds.push_back(find_all(kind));
  }
  const auto lacks = [](const std::vector<RankStep*>& ranks) {
    return std::ranges::count(ranks, nullptr) > 0;
  };
  step_.planned = lacks(step_.ranks) || std::ranges::any_of(kinds, lacks);
  if (missing) {
    step_.planned = *missing;
  } else if (session.world().workers() > 1) {
    const std::vector<std::string> all = session.world().exchange(step_.planned ? "y" : "n");
    step_.planned = std::ranges::count(all, "y") > 0;
  }
  if (step_.planned) {
    const std::size_t most = std::max(kMaxSteps, 2 * (1 + kinds.size())) * pieces.size();
    // Those compiled before the layouts of variables changed are gone, and are compiled again.
    constexpr int kMostTimes = 4;
    const auto forget = [&](std::vector<RankStep*>& ranks) {
      ranks.assign(pieces.size(), nullptr);
    };
    for (int times = 0;; ++times) {
      ensure(times < kMostTimes, "the forms of a step do not agree on the layouts of variables");
      const std::uint64_t before = layout_version_;
      const bool whole = std::ranges::count(step_.ranks, nullptr) == std::ssize(step_.ranks);
      compile_missing(session, source, signatures, step_.ranks);
      const std::uint64_t valid = layout_version_;
      if (valid != before) std::ranges::for_each(kinds, forget);
      for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
        compile_missing(session, source, micro_batches.kinds[kind], kinds[kind]);
      }
      if (layout_version_ == valid && (valid == before || whole)) break;
      forget(step_.ranks);
      std::ranges::for_each(kinds, forget);
    }
    while (steps_.size() > most) steps_.pop_back();
  }
  step_.micro_batches.clear();
  for (const MicroBatches::Turn& turn : micro_batches.turns) {
    step_.micro_batches.push_back({.ranks = kinds[turn.kind],
                                   .pieces = turn.pieces,
                                   .runs = std::vector<std::uint64_t>(pieces.size(), 0)});
  }
  return step_;
}

// A rank that has its step already takes part with another copy: compiling is collective.
void StepCache::compile_missing(Session& session, const StepSource& source,
                                std::span<const StepSignature> signatures,
                                std::vector<RankStep*>& ranks_of_step) {
  const PhaseScope start(session.phases(), Phase::Start);
  const bool all = session.world().workers() > 1;
  // The last micro-batch of a step has all its variables.
  const auto variable_bytes = [&](std::size_t i) {
    const bool micro = signatures[i].form == MicroForm::Add && step_.ranks[i] != nullptr;
    return micro ? step_.ranks[i]->plan().variable_bytes : 0;
  };
  std::vector<CompileRequest> requests;
  std::vector<const StepSignature*> made;
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    // Another form of the step may have compiled it just now.
    if (ranks_of_step[i] == nullptr) ranks_of_step[i] = find(static_cast<int>(i), signatures[i]);
    if (!all && ranks_of_step[i] != nullptr) continue;
    const auto same =
        std::ranges::find_if(made, [&](const auto* other) { return *other == signatures[i]; });
    Graph graph = same == made.end()
                      ? source.trace(signatures[i])
                      : clone(requests[static_cast<std::size_t>(same - made.begin())].graph);
    requests.push_back({.rank = static_cast<int>(i),
                        .graph = std::move(graph),
                        .precision = source.precision,
                        .memory = source.memory,
                        .accumulation = {.form = signatures[i].form,
                                         .accumulators = source.accumulators,
                                         .sum_outputs = source.sum_outputs},
                        .variable_bytes = variable_bytes(i)});
    made.push_back(&signatures[i]);
  }
  if (requests.empty()) return;
  const bool classes =
      !source.labels.empty() && reads_classes(requests.front().graph, source.labels);
  std::vector<int> ranks;
  for (const CompileRequest& request : requests) ranks.push_back(request.rank);
  std::vector<std::unique_ptr<Executor>> executors = session.compile(std::move(requests));
  if (layout_version_ != session.layout_version()) {
    clear();
    layout_version_ = session.layout_version();
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto place = static_cast<std::size_t>(ranks[i]);
    ranks_of_step[place] = find(ranks[i], signatures[place]);
    if (ranks_of_step[place] != nullptr) continue;  // which others may point to
    steps_.push_front({ranks[i], RankStep(signatures[place], std::move(executors[i]),
                                          classes ? source.labels : "")});
    ranks_of_step[place] = &steps_.front().step;
  }
}

void expect_class_numbers(const Tensor& labels, std::int64_t first_row) {
  if (!is_floating(labels.dtype())) return;
  constexpr double kLimit = 2147483648.0;
  dispatch(labels.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> values = labels.values<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto label = static_cast<double>(values[i]);
      if (std::trunc(label) == label && std::abs(label) < kLimit) continue;
      const std::int64_t row = static_cast<std::int64_t>(i) * labels.shape()[0] / labels.elements();
      fail<DataError>(
          "[labels] row {} of the batch has the label {}, which names no class: class numbers must "
          "be whole; correct the label, or use a loss for real targets",
          first_row + row, +values[i]);
    }
  });
}

}  // namespace lockstep
