// Workers to which files are dealt out (AutoShardPolicy::File), workers that all see everything
// (Off), and the choice between the policies (Auto).
#include "data/files.h"
#include "data/worker_shares.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/data/records.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

using Policy = AutoShardPolicy;
namespace fs = std::filesystem;

const std::vector<FeatureSpec> kNumber{{.name = "n", .dtype = DType::I64}};
// The numbers of records in each file.
const std::vector<std::int64_t> kSizes{5, 0, 9, 1, 7, 4};
constexpr std::int64_t kSamples = 26;

class WorkerFiles : public ::testing::Test {
 protected:
  WorkerFiles() {
    std::int64_t number = 0;
    for (const std::int64_t size : kSizes) {
      std::string bytes;
      std::string text = "n\n";
      for (const std::int64_t end = number + size; number < end; ++number) {
        append_tfrecord(bytes, serialize_example({{"n", std::vector<std::int64_t>{number}}}));
        text += fmt::format("{}\n", number);
      }
      records_.push_back(folder_ / fmt::format("{}.tfrecord", records_.size()));
      testing::write_bytes(records_.back(), bytes);
      tables_.push_back(folder_ / fmt::format("{}.csv", tables_.size()));
      testing::write_bytes(tables_.back(), text);
    }
  }

  Dataset examples(int cycle = 1, int parallel = 1) const {
    return read_examples(records_, kNumber, {.cycle = cycle, .parallel = parallel});
  }
  Dataset csv(int cycle = 1) const {
    return read_csv(tables_, {.cycle = cycle},
                    {.components = {{.columns = {"n"}, .dtype = DType::I64}}});
  }
  // The number of each line, or -1 for the header.
  Dataset lines() const {
    return read_text_lines(tables_)
        .map(
            [](const Element& line) {
              const std::string text = bytes_of(line[0]);
              return Element{
                  Tensor::scalar(text == "n" ? std::int64_t{-1} : std::int64_t{std::stol(text)})};
            },
            {.spec = {{DType::I64, {}}}})
        .filter([](const Element& element) { return element[0].values<std::int64_t>()[0] >= 0; });
  }

  TemporaryFolder folder_;
  std::vector<fs::path> records_;
  std::vector<fs::path> tables_;
};

std::vector<std::int64_t> union_of(const Dataset& dataset, const std::vector<WorkerShare>& shares,
                                   std::uint64_t epoch = 0) {
  std::vector<std::int64_t> all;
  for (const auto& worker : iterators_of(dataset, shares, epoch)) {
    const std::vector<std::int64_t> some = values_of(*worker);
    all.insert(all.end(), some.begin(), some.end());
  }
  return sorted(std::move(all));
}

TEST_F(WorkerFiles, GiveEverySampleOnceAnEpoch) {
  const std::vector<Dataset> datasets{
      examples().shuffle(7, {.seed = 1}).batch(20).prefetch(2),
      examples(1, 3).batch(21),
      examples(2, 2).shuffle({.seed = 5}).batch(20),
      examples(3).batch(20).shuffle(3),
      csv().batch(20).map([](const Element& element) { return element; },
                          {.spec = {{DType::I64, {20}}}}),
      csv(4).cache().batch(20),
      csv().cache(folder_ / "cache").batch(20),
      csv().batch(20).cache(),
      lines().padded_batch(20),
      lines().batch(4).unbatch().batch(20)};
  for (const Dataset& dataset : datasets) {
    for (int workers = 1; workers <= 5; ++workers) {
      for (const int ranks : {1, 2}) {
        for (const std::uint64_t epoch : {0, 1}) {
          const std::vector<WorkerShare> shares = shares_of(workers, ranks, Policy::File);
          EXPECT_EQ(union_of(dataset, shares, epoch), count_up(kSamples))
              << dataset << ", " << workers << " workers of " << ranks;
        }
      }
    }
  }
}

TEST_F(WorkerFiles, ReadOnlyTheirFilesInBatchesOfTheirShare) {
  testing::write_bytes(tables_[1], "damaged");
  const std::vector<WorkerShare> shares = shares_of(2, 1, Policy::File);
  for (const int cycle : {1, 2}) {
    const auto workers = iterators_of(csv(cycle).batch(7), shares);
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> values;
    while (const std::optional<Element> batch = workers[0]->next()) {
      rows.push_back(batch->front().shape()[0]);
      EXPECT_FALSE(batch->piece);
      for (const std::int64_t value : std::as_const(batch->front()).values<std::int64_t>()) {
        values.push_back(value);
      }
    }
    // Files 0, 2 and 4 have 5, 9 and 7 records.
    EXPECT_EQ(rows, (std::vector<std::int64_t>{4, 4, 4, 4, 4, 1}));
    std::vector<std::int64_t> expected = count_up(14);
    for (const std::int64_t value : count_up(7, 15)) expected.push_back(value);
    EXPECT_EQ(sorted(values), expected);
    EXPECT_THROW(values_of(*workers[1]), DataError);
  }
}

TEST_F(WorkerFiles, SamplesKeepTheirNumbersWhoeverReadsThem) {
  // What a random map draws for a sample depends neither on the policy nor on the worker.
  const Dataset dataset = examples().map(
      RandomMapFunction([](const Element& element, RandomSequence& random) -> Element {
        return {Tensor::scalar(100 * element[0].values<std::int64_t>()[0] +
                               static_cast<std::int64_t>(random.below(100)))};
      }),
      {.spec = {{DType::I64, {}}}, .seed = 3});
  std::vector<std::int64_t> one = sorted(values_of(*dataset.batch(4).iterator()));
  EXPECT_EQ(union_of(dataset.batch(12), shares_of(3, 1, Policy::File)), one);
}

TEST_F(WorkerFiles, ContinueFromTheirPositions) {
  for (const Dataset& dataset :
       {examples().shuffle(4, {.seed = 2}).batch(9), csv(2).batch(9).prefetch(2)}) {
    const std::vector<WorkerShare> shares = shares_of(3, 1, Policy::File);
    for (const WorkerShare& share : shares) {
      const std::vector<Element> all = rest_of(*dataset.iterator({.share = share}));
      const auto iterator = dataset.iterator({.share = share});
      for (std::size_t k = 0; k <= all.size(); ++k) {
        const auto restored = dataset.iterator({.epoch = 4, .share = share});
        restored->restore(iterator->save());
        EXPECT_TRUE(same_elements(rest_of(*restored), std::span(all).subspan(k)));
        iterator->next();
      }
    }
    const std::string position = dataset.iterator({.share = shares[1]})->save();
    EXPECT_THROW(dataset.iterator({.share = shares[0]})->restore(position), UsageError);
    EXPECT_THROW(dataset.iterator()->restore(position), UsageError);
    EXPECT_THROW(dataset.iterator({.shard = 1, .shards = 3})->restore(position), UsageError);
  }
}

TEST_F(WorkerFiles, AnotherNumberOfWorkersContinuesTheEpochWithAnyPolicy) {
  const std::vector<Dataset> datasets{examples().shuffle(4, {.seed = 2}).batch(12),
                                      csv(2).batch(12).prefetch(2), lines().batch(12).repeat(1)};
  for (const Dataset& dataset : datasets) {
    for (const int before : {1, 2, 3, 5}) {
      for (const int after : {1, 2, 4}) {
        for (const int steps : {0, 1, 2, 9}) {
          SCOPED_TRACE(fmt::format("{} to {} workers after {} steps", before, after, steps));
          std::vector<std::int64_t> seen;
          std::vector<std::string> positions;
          for (const auto& worker : iterators_of(dataset, shares_of(before, 1, Policy::File))) {
            for (int step = 0; step < steps; ++step) {
              const std::optional<Element> batch = worker->next();
              if (!batch) break;
              const auto values = std::as_const(batch->front()).values<std::int64_t>();
              seen.insert(seen.end(), values.begin(), values.end());
            }
            positions.push_back(worker->save());
          }
          const auto rest = [&](const std::vector<WorkerShare>& shares, bool one_position) {
            std::vector<std::string> resharded =
                reshard(positions, one_position ? 1 : std::ssize(shares));
            std::vector<std::int64_t> all = seen;
            const auto workers = iterators_of(dataset, shares);
            for (std::size_t w = 0; w < workers.size(); ++w) {
              workers[w]->restore(resharded[one_position ? 0 : w]);
              // Once more, to check positions of restored iterators as well.
              const auto again = dataset.iterator({.share = shares[w]});
              again->restore(workers[w]->save());
              const std::vector<std::int64_t> some = values_of(*again);
              all.insert(all.end(), some.begin(), some.end());
            }
            return sorted(std::move(all));
          };
          EXPECT_EQ(rest(shares_of(after, 2, Policy::File), false), count_up(kSamples));
          EXPECT_EQ(rest(shares_of(after, 1, Policy::Data), true), count_up(kSamples));
          // A position of all workers, divided by files from there on.
          const auto data = dataset.iterator({.share = shares_of(3, 1, Policy::Data)[0]});
          const auto whole = dataset.iterator();
          seen.clear();
          for (int step = 0; step < std::min(steps, 2); ++step) {
            data->next();
            const std::optional<Element> batch = whole->next();
            if (!batch) break;
            const auto values = std::as_const(batch->front()).values<std::int64_t>();
            seen.insert(seen.end(), values.begin(), values.end());
          }
          positions = {data->save()};
          EXPECT_EQ(rest(shares_of(after, 1, Policy::File), false), count_up(kSamples));
        }
      }
    }
  }
}

TEST_F(WorkerFiles, OffGivesEveryWorkerAllSamples) {
  for (const Dataset& dataset :
       {Dataset::range(23).shuffle({.seed = 1}).batch(8), Dataset::range(23).batch(8).cache()}) {
    for (const int workers : {1, 2, 3}) {
      const std::vector<WorkerShare> shares = shares_of(workers, 1, Policy::Off);
      for (const WorkerShare& share : shares) {
        const auto iterator = dataset.iterator({.share = share});
        const std::vector<std::vector<std::int64_t>> rows{{8}, {4, 4}, {3, 3, 2}};
        EXPECT_EQ(
            iterator->next()->front().shape()[0],
            rows[static_cast<std::size_t>(workers - 1)][static_cast<std::size_t>(share.worker)]);
        const auto again = dataset.iterator({.share = share});
        EXPECT_EQ(sorted(values_of(*again)), count_up(23));
      }
    }
    EXPECT_EQ(values_of(*dataset.iterator()), values_of(*dataset.iterator()));
  }
}

TEST_F(WorkerFiles, AutoDealsOutRecordFilesWhereThatGivesEverySampleOnce) {
  const auto policy = [](const Dataset& dataset, int workers) {
    return dataset.resolve_policy(workers);
  };
  const Dataset batches = examples().batch(8);
  for (const int workers : {1, 2, 6}) EXPECT_EQ(policy(batches, workers), Policy::File);
  EXPECT_EQ(policy(batches, 7), Policy::Data);
  EXPECT_EQ(policy(examples().shuffle(5).batch(8).repeat(2).prefetch(2), 2), Policy::File);
  EXPECT_EQ(policy(csv().concatenate(examples()).batch(8), 2), Policy::File);
  // A rank without rows would lose its files.
  EXPECT_EQ(policy(examples().batch(3), 4), Policy::Data);
  EXPECT_EQ(policy(examples().batch(4), 4), Policy::File);
  for (const Dataset& dataset :
       {Dataset::range(9).batch(8), batches.take(3), batches.skip(1), examples().take(3).batch(8),
        csv().zip(examples()).batch(8), csv().concatenate(Dataset::range(2)).batch(8),
        csv().snapshot(folder_ / "snapshot").batch(8), batches.shard(2, 0)}) {
    EXPECT_EQ(policy(dataset, 2), Policy::Data) << dataset;
  }
  // The same for all workers, whatever their ranks.
  for (const WorkerShare& share : shares_of(3, 2)) {
    EXPECT_EQ(batches.resolve_policy(share), Policy::File);
    EXPECT_EQ(examples().batch(5).resolve_policy(share), Policy::Data);
  }
}

TEST_F(WorkerFiles, ThePolicyStaysWithADataSetAndThoseDerivedFromIt) {
  const Dataset dataset = csv().with_options({.auto_shard_policy = Policy::Data});
  EXPECT_EQ(dataset.options().auto_shard_policy, Policy::Data);
  const Dataset derived = dataset.shuffle(3).batch(8).concatenate(csv().batch(8)).prefetch(2);
  EXPECT_EQ(derived.options().auto_shard_policy, Policy::Data);
  EXPECT_EQ(derived.resolve_policy(2), Policy::Data);
  expect_pieces(iterators_of(derived, shares_of(2)), all_of(derived));
  const Dataset off = csv().batch(8).with_options({.auto_shard_policy = Policy::Off});
  EXPECT_EQ(off.take(5).resolve_policy(2), Policy::Off);
  // The policy of a share comes first.
  EXPECT_EQ(off.resolve_policy(shares_of(2, 1, Policy::File)[0]), Policy::File);
}

TEST_F(WorkerFiles, WhatCannotBeDealtOutIsRefused) {
  const auto message = [](const Dataset& dataset, const WorkerShare& share) {
    return message_of<UsageError>([&] { dataset.iterator({.share = share}); });
  };
  const WorkerShare seven = shares_of(7, 1, Policy::File)[0];
  for (const int cycle : {1, 2}) {
    const std::string few = message(csv(cycle).batch(8), seven);
    EXPECT_TRUE(contains(few, "6 files and there are 7 workers") &&
                contains(few, "AutoShardPolicy::Data") && contains(few, "at least 7 files"))
        << few;
  }
  const WorkerShare two = shares_of(2, 1, Policy::File)[1];
  EXPECT_TRUE(contains(message(Dataset::range(5).batch(2), two), "range does not read files"));
  EXPECT_TRUE(contains(message(csv().zip(csv()).batch(2), two), "zip needs"));
  EXPECT_TRUE(contains(message(csv(), two), "call batch() last"));
  EXPECT_TRUE(contains(message(csv().batch(1), two), "at least 2 rows"));
  EXPECT_TRUE(
      contains(message(Dataset::range(5), shares_of(2, 1, Policy::Off)[0]), "call batch() last"));
  EXPECT_THROW(csv().batch(8).iterator({.shard = 0, .shards = 2, .share = two}), UsageError);
  // On request, take and skip count the elements of each worker.
  EXPECT_EQ(union_of(csv().batch(8).take(1), shares_of(2, 1, Policy::File)).size(), 8u);
}

}  // namespace
}  // namespace lockstep
