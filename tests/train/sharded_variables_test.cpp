// Variables that lie on the ranks in slices: made, read whole, set, saved, and loaded on another
// number of ranks.
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/runtime/session.h"
#include "lockstep/tensor/sliced_file.h"
#include "lockstep/train/strategy_impl.h"
#include "temporary_folder.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

const Shape kShape{7, 131};  // no number of ranks divides it

// Starts with its elements' numbers.
VariableRef make_table() {
  Variable table;
  table.name = "table";
  table.shape = kShape;
  table.placement = Placement::sharded_flat();
  table.initializer = [](Tensor& target, std::uint64_t) {
    std::iota(target.values<float>().begin(), target.values<float>().end(), 0.0f);
  };
  return std::make_shared<const Variable>(std::move(table));
}

Tensor numbers(float from, float factor) {
  Tensor value(DType::F32, kShape);
  for (float& x : value.values<float>()) x = factor * from++;
  return value;
}

// Doubles this rank's slice; gives the whole of what was there before.
Graph doubling(const VariableRef& table, RankInGroup here) {
  Graph graph;
  const ValueType type{table->dtype, table->shape};
  const Value slice = graph.variable(table, slices_of({&type, 1}, here).front());
  const Value whole = all_gather({&slice, 1}, {&kShape, 1}, here).front();
  const Value doubled = whole * 2.0;
  graph.output("before", whole);
  assign(table, own_slice({&doubled, 1}, here).front());
  return graph;
}

// A table on the ranks of a session.
class Table {
 public:
  explicit Table(int ranks) : strategy_(mirrored(ranks)) {
    const std::shared_ptr<World> world = impl_of(strategy_).world;
    session_ = std::make_unique<Session>(SessionOptions{.world = world});
  }
  void compile() {
    const World& world = session_->world();
    std::vector<CompileRequest> requests;
    for (int local = 0; local < world.local_size(); ++local) {
      requests.push_back(
          {.rank = local,
           .graph = doubling(variable, {.rank = world.rank(local), .size = world.size()})});
    }
    executors_ = session_->compile(std::move(requests));
  }
  void run() {
    session_->run([&](int local) { executors_[static_cast<std::size_t>(local)]->run(); });
  }
  Tensor before(std::size_t local) const { return executors_[local]->output("before"); }
  std::size_t local_size() const { return executors_.size(); }
  Session& session() { return *session_; }

  const VariableRef variable = make_table();

 private:
  Strategy strategy_;
  std::unique_ptr<Session> session_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

class ShardedVariable : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, ShardedVariable, ::testing::Values(2, 3, 4));

TEST_P(ShardedVariable, IsInitialisedUpdatedReadAndSetAsIfItWereWhole) {
  Table table(GetParam());
  table.compile();
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(0, 1)));
  table.run();
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(0, 2)));
  for (std::size_t local = 0; local < table.local_size(); ++local) {
    EXPECT_TRUE(table.before(local).same_bits(numbers(0, 1))) << "local rank " << local;
  }
  table.session().set(table.variable, numbers(100, 1));
  table.run();
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(100, 2)));
  // Slices are no copies of one another: there is nothing to compare, and nothing to give to all.
  table.session().expect_mirrored();
  table.session().resync();
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(100, 2)));
}

TEST_P(ShardedVariable, GoesOnOnAnotherNumberOfRanks) {
  Table table(GetParam());
  table.compile();
  table.run();
  Table other(GetParam() == 2 ? 3 : 2);
  other.compile();
  other.session().set(other.variable, table.session().get(table.variable));
  other.run();
  EXPECT_TRUE(other.session().get(other.variable).same_bits(numbers(0, 4)));
}

// Before a step says which slices the ranks have, every rank has the whole.
TEST_P(ShardedVariable, IsReadAndSetBeforeAStepIsCompiled) {
  Table table(GetParam());
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(0, 1)));
  table.session().set(table.variable, numbers(5, 3));
  EXPECT_TRUE(table.session().get(table.variable).same_bits(numbers(5, 3)));
}

// Every rank keeps its slice alone, and writes it into a file of its own.
TEST(ShardedVariables, SavedInSlicesAreLoadedOnAnotherNumberOfRanks) {
  const VariableRef table = make_table();
  const auto states_of = [&](int size) {
    std::vector<std::unique_ptr<State>> states;
    std::size_t bytes = 0;
    for (int rank = 0; rank < size; ++rank) {
      states.push_back(std::make_unique<State>(host(), 1));
      states.back()->add(doubling(table, {.rank = rank, .size = size}));
      EXPECT_TRUE(states.back()->is_sharded(*table));
      bytes += states.back()->bytes(*table);
    }
    EXPECT_EQ(bytes, numbers(0, 1).bytes());
    return states;
  };
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "checkpoint.safetensors";
  const Shape flat{kShape.elements()};
  const std::vector<std::unique_ptr<State>> three = states_of(3);
  for (const auto& state : three) state->set(*table, numbers(1, 0.5f));
  const std::int64_t save = next_save(index);
  std::vector<SliceFile> files;
  for (int rank = 0; rank < 3; ++rank) {
    const State& state = *three[static_cast<std::size_t>(rank)];
    const TensorSlice slice{.name = table->name,
                            .whole = flat,
                            .begin = {static_cast<std::int64_t>(state.slice(*table).begin)},
                            .value = state.get_slice(*table)};
    files.push_back(write_slices(slice_file(index, save, rank, 3), {&slice, 1}));
  }
  write_index(index, save, {}, files);

  const TensorReader reader(index);
  EXPECT_TRUE(reader.read(table->name).reshaped(kShape).same_bits(numbers(1, 0.5f)));
  for (const auto& state : states_of(2)) {
    state->set(*table, reader.read(table->name).reshaped(kShape));
    const std::int64_t begin = static_cast<std::int64_t>(state->slice(*table).begin);
    const Tensor here = state->get_slice(*table);
    EXPECT_TRUE(here.same_bits(reader.read_slice(table->name, {&begin, 1}, here.shape())));
    EXPECT_EQ(here.values<float>().front(), 0.5f * static_cast<float>(begin + 1));
  }
}

}  // namespace
}  // namespace lockstep::testing
