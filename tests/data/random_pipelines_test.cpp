// Pipelines of random transformations: saved positions are exact, ids differ, and the number of
// threads changes nothing.
#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/base/random.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

// Draws the same pipeline for the same seed, whatever the number of threads in it.
class Drawn {
 public:
  Drawn(std::uint64_t seed, int threads, const TemporaryFolder& folder)
      : random_(seed, hash_name("pipelines")),
        seed_(seed),
        threads_(threads),
        folder_(folder),
        dataset_(source()) {
    const std::uint64_t steps = 1 + random_.below(6);
    for (std::uint64_t i = 0; i < steps; ++i) step();
  }

  Dataset dataset() const { return dataset_.with_budget({.cores = threads_}); }
  const std::string& name() const { return name_; }

 private:
  Dataset source() {
    const auto count = static_cast<std::int64_t>(random_.below(14));
    if (random_.below(2) == 0) {
      name_ = fmt::format("range({})", count);
      return Dataset::range(count);
    }
    name_ = fmt::format("tensors({})", count);
    return Dataset::from_tensor_slices({Tensor::of(count_up(count), {count})});
  }

  int parallel() const { return threads_; }

  std::string file() { return fmt::format("{}-{}-{}", seed_, threads_, files_++); }

  void step() {
    const std::size_t before = name_.size();
    const auto say = [&](const std::string& text) { name_ += text; };
    const std::uint64_t seed = random_.below(1000);
    const auto some = [&](std::uint64_t most) {
      return 1 + static_cast<std::int64_t>(random_.below(most));
    };
    const bool scalar = dataset_.element_spec()[0].shape.rank() == 0;
    const std::vector<ElementSpec> spec = dataset_.element_spec();
    switch (random_.below(18)) {
      case 0: {
        const std::int64_t buffer = some(6);
        say(fmt::format(".shuffle({})", buffer));
        dataset_ = dataset_.shuffle({.buffer = buffer, .seed = seed});
        break;
      }
      case 1:
        if (!scalar) break;
        say(".batch");
        dataset_ = dataset_.batch(some(4), {.drop_remainder = seed % 2 == 0});
        break;
      case 2:
        say(".take");
        dataset_ = dataset_.take(some(20));
        break;
      case 3:
        say(".skip");
        dataset_ = dataset_.skip(some(4));
        break;
      case 4:
        say(".repeat");
        dataset_ = dataset_.repeat(some(2));
        break;
      case 5:
        say(".map");
        dataset_ = dataset_.map(add_one, {.spec = spec});
        break;
      case 6:
        say(".map parallel");
        dataset_ = dataset_.map(add_one, {.spec = spec, .parallel = parallel()});
        break;
      case 7: {
        say(".map random");
        const RandomMapFunction add_some = [](const Element& element, RandomSequence& random) {
          return added(element, static_cast<std::int64_t>(random.below(1000)));
        };
        dataset_ = dataset_.map(add_some, {.spec = spec, .parallel = parallel(), .seed = seed});
        break;
      }
      case 8:
        say(".filter");
        dataset_ = dataset_.filter([](const Element& element) {
          return element[0].elements() == 0 || element[0].values<std::int64_t>()[0] % 3 != 0;
        });
        break;
      case 9: {
        const std::int64_t shards = some(3);
        say(fmt::format(".shard({})", shards));
        dataset_ = dataset_.shard(shards, static_cast<std::int64_t>(seed) % shards);
        break;
      }
      case 10: {
        if (!scalar) break;
        say(".interleave");
        const auto inner = [](const Element& element) {
          const std::int64_t n = element[0].values<std::int64_t>()[0];
          return Dataset::range(((n % 4) + 4) % 4)
              .shuffle({.buffer = 2, .seed = 5})
              .map([n](const Element& x) { return added(x, 10 * n); });
        };
        dataset_ = dataset_.take(12).interleave(
            inner, {.cycle = static_cast<int>(some(3)), .block = some(2), .parallel = parallel()});
        // An empty interleave has no element spec, so nothing could follow it.
        if (dataset_.element_spec().empty()) dataset_ = Dataset::range(2);
        break;
      }
      case 11:
        say(".zip");
        dataset_ = dataset_.zip(Dataset::range(9).shuffle({.buffer = 3, .seed = seed}));
        dataset_ = dataset_.map(first_only, {.spec = {spec[0]}});
        break;
      case 12:
        say(".concatenate");
        dataset_ = dataset_.concatenate(dataset_.take(3));
        break;
      case 13:
        say(".enumerate");
        dataset_ = dataset_.enumerate(2).map(
            [](const Element& element) {
              return added({element[1]}, element[0].values<std::int64_t>()[0]);
            },
            {.spec = {spec[0]}});
        break;
      case 14:
        say(".cache");
        dataset_ = dataset_.cache();
        break;
      case 15:
        say(".cache(file)");
        dataset_ = dataset_.cache(folder_ / file());
        break;
      case 16:
        say(".prefetch");
        dataset_ = dataset_.prefetch(static_cast<int>(some(3)));
        break;
      case 17:
        if (scalar) {
          say(".padded_batch");
          dataset_ = dataset_.padded_batch(some(4));
        } else {
          say(".unbatch");
          dataset_ = dataset_.unbatch();
        }
        break;
    }
    if (name_.size() == before) say(".");
  }

  static Element added(const Element& element, std::int64_t value) {
    Element result{element[0].clone()};
    for (std::int64_t& each : result[0].values<std::int64_t>()) each += value;
    return result;
  }
  static Element add_one(const Element& element) { return added(element, 1); }
  static Element first_only(const Element& element) { return {element[0]}; }

  RandomSequence random_;
  std::uint64_t seed_;
  int threads_;
  const TemporaryFolder& folder_;
  int files_ = 0;
  std::string name_;
  Dataset dataset_;
};

TEST(RandomPipelines, SavedPositionsAreExactForAnyNumberOfThreads) {
  TemporaryFolder folder;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Variants variants;
    for (int threads = 1; threads <= 4; ++threads) {
      const Drawn drawn(seed, threads, folder);
      variants.name = fmt::format("seed {}: {}", seed, drawn.name());
      variants.datasets.push_back(drawn.dataset());
    }
    const std::uint64_t epoch = seed % 3;
    const std::size_t count = all_of(variants.datasets[0], epoch).size();
    expect_positions_hold(variants, epoch, 1 + count / 5);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RandomPipelines, IdsDiffer) {
  TemporaryFolder folder;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Drawn drawn(seed, 2, folder);
    expect_ids_differ(all_of(drawn.dataset()));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ": " << drawn.name();
  }
}

}  // namespace
}  // namespace lockstep
