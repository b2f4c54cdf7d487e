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

void RankStep::run(std::int64_t step, std::int64_t first_row, int rank, Inputs inputs) {
  if (random_state_.defined() || rank_.defined()) executor_->await_inputs();
  if (random_state_.defined()) {
    const std::span<std::int64_t> state = random_state_.values<std::int64_t>();
    state[0] = step;
    state[1] = first_row;
  }
  if (rank_.defined()) rank_.values<std::int64_t>()[0] = rank;
  executor_->run(inputs);
}

void CompiledStep::run_rank(Session& session, int local, Inputs inputs) {
  const auto i = static_cast<std::size_t>(local);
  const int rank = session.world().rank(local);
  try {
    ranks[i]->run(session.step, pieces[i].begin, rank, inputs);
    runs[i] = ranks[i]->executor().runs();
  } catch (const DataError& error) {
    if (session.world().size() == 1) throw;
    fail<DataError>("rows {} to {} of the batch: {}", pieces[i].begin, pieces[i].end - 1,
                    error.what());
  }
}

bool CompiledStep::is_for(std::span<const StepSignature> signatures) const {
  return std::ranges::equal(
      ranks, signatures, {}, [](const RankStep* step) -> const auto& { return step->signature(); });
}

void CompiledStep::wait() const {
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i]->executor().wait(runs[i]);
}

void CompiledStep::abandon() const noexcept {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    try {
      ranks[i]->executor().wait(runs[i]);
    } catch (const Error&) {
      // Of a step after one that failed.
    }
  }
}

std::vector<Tensor> CompiledStep::outputs(std::size_t place) const {
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < ranks.size(); ++i) values.push_back(ranks[i]->output(place, runs[i]));
  return values;
}

std::size_t CompiledStep::told_outputs() const {
  constexpr std::size_t kMost = 2;  // a loss and its weight
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
  const auto add = [&](std::string_view doubles) {
    for (std::size_t at = 0; at < doubles.size(); at += sizeof(double)) {
      double value = 0;
      std::memcpy(&value, doubles.data() + at, sizeof(double));
      total += value;
    }
  };
  if (!told.empty() && place < told_outputs()) {
    for (const std::string& theirs : told) {
      const std::size_t bytes = theirs.size() / told_outputs();
      add(std::string_view(theirs).substr(place * bytes, bytes));
    }
    return total;
  }
  if (session.world().workers() == 1) {
    for (std::size_t i = 0; i < ranks.size(); ++i) total += ranks[i]->output(place, runs[i]).item();
    return total;
  }
  // Reading waits for the step, which may have failed on one worker.
  const auto own = [&] {
    std::string mine;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double value = ranks[i]->output(place, runs[i]).item();
      mine.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return mine;
  };
  for (const std::string& theirs : session.world().gather(own)) add(theirs);
  return total;
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

bool StepCache::holds(const Session& session, std::span<const StepSignature> signatures) const {
  if (layout_version_ != session.layout_version()) return false;
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    const bool found = std::ranges::any_of(steps_, [&](const Entry& entry) {
      return entry.rank == static_cast<int>(i) && entry.step.signature() == signatures[i];
    });
    if (!found) return false;
  }
  return true;
}

CompiledStep& StepCache::get(Session& session, const StepSource& source,
                             std::span<const StepSignature> signatures,
                             std::span<const Piece> pieces, std::optional<bool> missing) {
  ensure(std::ssize(pieces) == session.local_size() && signatures.size() == pieces.size(),
         "{} signatures and {} pieces for {} ranks", signatures.size(), pieces.size(),
         session.local_size());
  if (layout_version_ != session.layout_version()) clear();
  layout_version_ = session.layout_version();
  step_.planned = false;
  step_.pieces.assign(pieces.begin(), pieces.end());
  step_.ranks.assign(pieces.size(), nullptr);
  step_.runs.assign(pieces.size(), 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    step_.ranks[i] = find(static_cast<int>(i), signatures[i]);
    step_.planned = step_.planned || step_.ranks[i] == nullptr;
  }
  if (missing) {
    step_.planned = *missing;
  } else if (session.world().workers() > 1) {
    const std::vector<std::string> all = session.world().exchange(step_.planned ? "y" : "n");
    step_.planned = std::ranges::count(all, "y") > 0;
  }
  if (step_.planned) compile_missing(session, source, signatures);
  return step_;
}

// A rank that has its step already takes part with another copy: compiling is collective.
void StepCache::compile_missing(Session& session, const StepSource& source,
                                std::span<const StepSignature> signatures) {
  const PhaseScope start(session.phases(), Phase::Start);
  const bool all = session.world().workers() > 1;
  std::vector<CompileRequest> requests;
  std::vector<const StepSignature*> made;
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    if (!all && step_.ranks[i] != nullptr) continue;
    const auto same =
        std::ranges::find_if(made, [&](const auto* other) { return *other == signatures[i]; });
    Graph graph = same == made.end()
                      ? source.trace(signatures[i])
                      : clone(requests[static_cast<std::size_t>(same - made.begin())].graph);
    requests.push_back(
        {.rank = static_cast<int>(i), .graph = std::move(graph), .precision = source.precision});
    made.push_back(&signatures[i]);
  }
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
    std::erase_if(steps_, [&](const Entry& entry) {
      return entry.rank == ranks[i] && entry.step.signature() == signatures[place];
    });
    steps_.push_front({ranks[i], RankStep(signatures[place], std::move(executors[i]),
                                          classes ? source.labels : "")});
    step_.ranks[place] = &steps_.front().step;
  }
  const std::size_t most = kMaxSteps * signatures.size();
  while (steps_.size() > most) steps_.pop_back();
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
