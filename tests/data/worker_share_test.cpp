// Workers that take their pieces of every global batch (AutoShardPolicy::Data).
#include <atomic>
#include <fstream>

#include "data/files.h"
#include "data/image_files.h"
#include "data/worker_shares.h"
#include "lockstep/base/random.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/data/records.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

constexpr AutoShardPolicy kData = AutoShardPolicy::Data;

struct Named {
  std::string name;
  Dataset dataset;
  bool ordered = true;

  // One worker that sees everything; with a share, stages keep the order that they need not keep
  // otherwise.
  std::unique_ptr<Iterator> one_worker(std::uint64_t epoch = 0) const {
    if (ordered) return dataset.iterator(epoch);
    return dataset.iterator({.epoch = epoch, .share = WorkerShare{.policy = kData}});
  }
};

Dataset table(std::int64_t count) {
  Tensor pairs(DType::F32, {count, 2});
  for (std::int64_t i = 0; i < 2 * count; ++i) {
    pairs.values<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i) / 2;
  }
  return Dataset::from_tensor_slices({Tensor::of(count_up(count), {count}), pairs});
}

Dataset generated(std::int64_t count) {
  return Dataset::from_generator(
      [count](std::uint64_t epoch) {
        return [=, at = std::int64_t{0}]() mutable -> std::optional<Element> {
          if (at == count) return std::nullopt;
          return Element{Tensor::scalar(static_cast<std::int64_t>(1000 * epoch) + at++)};
        };
      },
      {.spec = {{DType::I64, {}}}});
}

// Batches of 1, 2, 3, … rows.
Dataset generated_batches(std::int64_t count) {
  return Dataset::from_generator(
      [count](std::uint64_t) {
        return [=, at = std::int64_t{0}]() mutable -> std::optional<Element> {
          if (at == count) return std::nullopt;
          ++at;
          return Element{Tensor::of(count_up(at, 100 * at), {at})};
        };
      },
      {.spec = {{DType::I64, {0}, true}}});
}

Element plus(const Element& element, std::int64_t value) {
  Element result = element;
  result[0] = element[0].clone();
  for (std::int64_t& each : result[0].values<std::int64_t>()) each += value;
  return result;
}

Element add_seven(const Element& element) {
  return plus(element, 7);
}

Element add_random(const Element& element, RandomSequence& random) {
  return plus(element, static_cast<std::int64_t>(random.below(1000)));
}

// A function of whole batches: adds the sum of all rows to each.
Element add_sum(const Element& batch) {
  std::int64_t sum = 0;
  for (const std::int64_t value : batch[0].values<std::int64_t>()) sum += value;
  return plus(batch, sum);
}

bool not_third(const Element& element) {
  return element[0].elements() == 0 || element[0].values<std::int64_t>()[0] % 3 != 0;
}

// Vectors of different lengths.
Dataset ragged(std::int64_t count) {
  return Dataset::range(count).map(
      [](const Element& element) {
        const std::int64_t n = element[0].values<std::int64_t>()[0];
        return Element{Tensor::of(count_up(n % 4, n), {n % 4})};
      },
      {.spec = {{DType::I64, {0}, true}}, .parallel = 2});
}

std::vector<std::filesystem::path> text_files(const TemporaryFolder& folder, std::int64_t count) {
  std::vector<std::filesystem::path> files;
  for (const char* name : {"a", "b", "c"}) {
    files.push_back(folder / name);
    std::ofstream stream(files.back());
    if (files.size() == 1) stream << "n\n0\n";
    if (files.size() > 1) stream << "n\n";
    for (std::int64_t i = std::ssize(files); i < count; i += 3) stream << i << "\n";
  }
  return files;
}

std::vector<Named> pipelines(std::int64_t count, std::int64_t batch,
                             const std::vector<std::filesystem::path>& files) {
  const RandomMapFunction random = add_random;
  const std::vector<ElementSpec> spec = table(1).element_spec();
  const Dataset rows = table(count);
  const Dataset range = Dataset::range(count);
  const Dataset csv =
      read_csv(files, {}, {.components = {{.columns = {"n"}, .dtype = DType::I64}}});
  const Dataset csv_in_turns = read_csv(files, {.cycle = 2, .parallel = 2},
                                        {.components = {{.columns = {"n"}, .dtype = DType::I64}}});
  return {
      {"table", rows.batch(batch)},
      {"table, drop", rows.batch(batch, {.drop_remainder = true})},
      {"table, shuffled", rows.shuffle({.seed = 3}).batch(batch).prefetch(2)},
      {"table, small shuffle", rows.shuffle(5, {.seed = 3}).repeat(2).batch(batch)},
      {"table, map", rows.map(add_seven).batch(batch)},
      {"table, parallel map",
       rows.shuffle({.seed = 1}).map(add_seven, {.parallel = 3}).prefetch(2).batch(batch)},
      {"table, random map",
       rows.repeat(2).map(random, {.spec = spec, .parallel = 2, .seed = 5}).batch(batch)},
      {"table, unordered map",
       rows.map(add_seven, {.parallel = 3, .deterministic = false}).batch(batch), false},
      {"table, maps, take", rows.map(add_seven, {.parallel = 2}).take(9).batch(batch)},
      {"range", range.batch(batch)},
      {"range, drop", range.map(add_seven).batch(batch, {.drop_remainder = true})},
      {"range, filter", range.filter(not_third).batch(batch)},
      {"range, filter, map", range.filter(not_third).map(add_seven, {.parallel = 2}).batch(batch)},
      {"range, element shuffle", range.shuffle(4, {.seed = 8}).map(add_seven).batch(batch)},
      {"range, cache", range.map(add_seven).cache().batch(batch)},
      {"range, zip", range.zip(Dataset::range(17).map(add_seven)).batch(batch)},
      {"range, interleave",
       range
           .interleave([](const Element&) { return Dataset::range(2); },
                       {.parallel = 2, .deterministic = false})
           .batch(batch),
       false},
      {"generator", generated(count).batch(batch)},
      {"generator, map", generated(count).map(add_seven, {.parallel = 2}).batch(batch)},
      {"csv", csv.batch(batch)},
      {"csv, map", csv.map(add_seven, {.parallel = 2}).batch(batch).prefetch(1)},
      {"csv in turns", csv_in_turns.shuffle(3).batch(batch)},
      {"batch, map", range.batch(batch).map(add_sum, {.spec = {{DType::I64, {batch}}}})},
      {"batch, random map",
       range.batch(batch).map(random, {.spec = {{DType::I64, {batch}}}, .parallel = 2})},
      {"batch, rowwise map",
       range.batch(batch).map(add_seven,
                              {.spec = {{DType::I64, {batch}}}, .parallel = 2, .rowwise = true})},
      {"batch, take", range.batch(batch).take(2)},
      {"batch, skip", rows.batch(batch).skip(1)},
      {"batch, shuffle", rows.batch(batch).shuffle(3, {.seed = 4}).prefetch(2)},
      {"batch, repeat", rows.shuffle({.seed = 4}).batch(batch).repeat(2)},
      {"batch, concatenate", range.batch(batch).concatenate(Dataset::range(5).batch(batch))},
      {"batch, zip", rows.batch(batch).zip(range.map(add_seven).batch(batch))},
      {"batch, filter", range.batch(batch).filter(not_third)},
      {"batch, cache", range.map(add_seven).batch(batch).cache().repeat(2)},
      {"batch, shard", rows.batch(batch).shard(2, 1)},
      {"batch, unbatch, batch", range.batch(3).unbatch().batch(batch)},
      {"batch, interleave",
       Dataset::range(3).interleave([=](const Element&) { return range.batch(batch); })},
      {"padded batch", ragged(count).padded_batch(batch)},
      {"padded batch of a shape", ragged(count).padded_batch(batch, {.shapes = {{5}}})},
      {"generated batches", generated_batches(count / 2).prefetch(2)},
      {"mixed", generated_batches(2).concatenate(range.filter(not_third).padded_batch(batch))},
  };
}

class WorkerShares : public ::testing::Test {
 protected:
  std::vector<Named> of(std::int64_t count, std::int64_t batch) {
    return pipelines(count, batch, text_files(folder_, count));
  }
  TemporaryFolder folder_;
};

TEST_F(WorkerShares, GiveTheRowsOfTheBatchesOfOneWorker) {
  for (const auto& [count, batch] :
       {std::pair<std::int64_t, std::int64_t>{23, 8}, {12, 4}, {7, 5}, {13, 1}, {1, 6}, {19, 7}}) {
    for (const Named& named : of(count, batch)) {
      for (const std::uint64_t epoch : {0, 2}) {
        const std::vector<Element> batches = rest_of(*named.one_worker(epoch));
        for (int workers = 1; workers <= 5; ++workers) {
          for (const int ranks : {1, 2}) {
            SCOPED_TRACE(fmt::format("{}: {} samples in batches of {}, epoch {}, {} workers of {}",
                                     named.name, count, batch, epoch, workers, ranks));
            expect_pieces(iterators_of(named.dataset, shares_of(workers, ranks, kData), epoch),
                          batches);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(WorkerShares, AnyNumberOfWorkersContinuesFromThePositionOfAnyWorker) {
  for (const Named& named : of(23, 5)) {
    const std::vector<Element> batches = rest_of(*named.one_worker(1));
    for (std::size_t k = 0; k <= batches.size(); ++k) {
      const std::vector<WorkerShare> three = shares_of(3, 1 + static_cast<int>(k % 2), kData);
      const auto first = named.dataset.iterator({.epoch = 1, .share = three[1 + k % 2]});
      for (std::size_t i = 0; i < k; ++i) ASSERT_TRUE(first->next());
      const std::string position = first->save();
      const IteratorState state = first->save_state();
      SCOPED_TRACE(fmt::format("{}: after {} of {} batches", named.name, k, batches.size()));
      const std::span<const Element> rest = std::span(batches).subspan(k);
      const auto alone = named.one_worker();
      alone->restore(position);
      ASSERT_TRUE(same_elements(rest_of(*alone), rest));
      const auto two = iterators_of(named.dataset, shares_of(2, 2, kData));
      for (const auto& worker : two) worker->restore(position);
      expect_pieces(two, rest);
      if (HasFatalFailure()) return;
      // From one worker to four, with the elements as tensors, and from their positions again.
      const auto four = iterators_of(named.dataset, shares_of(4, 1, kData));
      for (const auto& worker : four) worker->restore_state(state);
      const std::size_t some = std::min<std::size_t>(2, rest.size());
      for (std::size_t i = 0; i < some; ++i) {
        for (const auto& worker : four) ASSERT_TRUE(worker->next());
      }
      const auto five = iterators_of(named.dataset, shares_of(5, 1, kData));
      for (std::size_t w = 0; w < five.size(); ++w) five[w]->restore(four[w % 4]->save());
      expect_pieces(five, rest.subspan(some));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(WorkerShares, ContinueWhatShardsBegan) {
  for (const bool mapped : {false, true}) {
    Dataset dataset = table(23).shard();
    if (mapped) dataset = dataset.map(add_seven, {.parallel = 2});
    dataset = dataset.batch(6);
    std::vector<std::string> positions;
    for (std::int64_t shard = 0; shard < 3; ++shard) {
      const auto iterator = dataset.iterator({.shard = shard, .shards = 3});
      if (shard == 1) iterator->next();
      positions.push_back(iterator->save());
    }
    const std::string position = reshard(positions, 1)[0];
    const auto one = dataset.iterator();
    one->restore(position);
    const std::vector<Element> batches = rest_of(*one);
    EXPECT_EQ(batches.size(), 3u);
    const auto workers = iterators_of(dataset, shares_of(4, 1, kData));
    for (const auto& worker : workers) worker->restore(position);
    expect_pieces(workers, batches);
  }
}

TEST_F(WorkerShares, NextIntoWritesTheWorkersRows) {
  for (const Dataset& dataset : {table(23).shuffle({.seed = 1}).batch(7),
                                 table(23).map(add_seven, {.parallel = 2}).batch(7).prefetch(2)}) {
    const std::vector<Element> batches = all_of(dataset);
    const std::vector<WorkerShare> shares = shares_of(3, 1, kData);
    const auto workers = iterators_of(dataset, shares);
    for (const Element& batch : batches) {
      std::string bytes;
      for (std::size_t w = 0; w < workers.size(); ++w) {
        const std::int64_t most = shares[w].most_rows_of(7);
        std::vector<Tensor> to{Tensor(DType::I64, {most}), Tensor(DType::F32, {most, 2})};
        const std::optional<std::int64_t> rows = workers[w]->next_into(to);
        ASSERT_TRUE(rows);
        ASSERT_TRUE(workers[w]->piece());
        EXPECT_EQ(workers[w]->piece()->rows_of_batch, batch[0].shape()[0]);
        EXPECT_EQ(workers[w]->piece()->rows.size(), *rows);
        bytes += bytes_of(to[0].rows(0, *rows));
      }
      EXPECT_EQ(bytes, bytes_of(batch[0]));
    }
  }
}

// The sum over workers of the calls of a function that is mapped over single samples.
TEST_F(WorkerShares, SamplesOfOthersAreNotMapped) {
  std::atomic<int> calls = 0;
  const MapFunction counted = [&](const Element& element) {
    ++calls;
    return element;
  };
  const std::vector<std::filesystem::path> files = text_files(folder_, 23);
  const Dataset csv =
      read_csv(files, {}, {.components = {{.columns = {"n"}, .dtype = DType::I64}}});
  for (const int parallel : {1, 3}) {
    const auto mapped = [&](const Dataset& dataset) {
      return dataset.map(counted, {.spec = dataset.element_spec(), .parallel = parallel});
    };
    const std::vector<Named> all{
        {"table", mapped(table(23).shuffle({.seed = 2})).batch(8)},
        {"prefetched", mapped(mapped(table(23)).prefetch(2)).batch(8).prefetch(3)},
        {"filtered", mapped(Dataset::range(35).filter(not_third)).batch(8)},
        {"csv", mapped(csv).batch(8).repeat(1)},
        {"generator", mapped(generated(23)).batch(8)},
        {"padded", mapped(Dataset::range(23)).padded_batch(8, {.shapes = {{}}})}};
    for (const Named& named : all) {
      for (const WorkerShare& share : shares_of(3, 1, kData)) {
        calls = 0;
        const auto iterator = named.dataset.iterator({.share = share});
        int rows = 0;
        while (const std::optional<Element> batch = iterator->next()) {
          rows += static_cast<int>(batch->front().shape()[0]);
        }
        const int maps = named.name == "prefetched" ? 2 : 1;
        EXPECT_EQ(calls, maps * rows) << named.name << ", worker " << share.worker;
        EXPECT_LT(rows, 10);
      }
    }
  }
}

TEST_F(WorkerShares, RowsOfOthersAreNotMappedIfTheFunctionIsRowwise) {
  for (const bool rowwise : {false, true}) {
    std::atomic<std::int64_t> rows = 0;
    const MapFunction counted = [&](const Element& batch) {
      EXPECT_GT(batch[0].shape()[0], 0);
      rows += batch[0].shape()[0];
      return batch;
    };
    const Dataset dataset =
        Dataset::range(10).batch(4).map(counted, {.spec = {{DType::I64, {4}}}, .rowwise = rowwise});
    expect_pieces(iterators_of(dataset, shares_of(5, 1, kData)), all_of(dataset));
    EXPECT_EQ(rows, 10 + (rowwise ? 10 : 50));
  }
}

TEST_F(WorkerShares, ImagesOfOthersAreNotOpened) {
  const Bytes image = make_jpeg(20, 20, {}, smooth_picture(20, 20, 3));
  const std::string bytes(reinterpret_cast<const char*>(image.data()), image.size());
  std::filesystem::create_directories(folder_ / "photos/a");
  std::filesystem::create_directories(folder_ / "photos/b");
  // In batches of 4, files 0, 1, 4 and 5 belong to worker 0.
  for (int i = 0; i < 8; ++i) {
    testing::write_bytes(folder_ / fmt::format("photos/{}/{}.jpg", i < 4 ? "a" : "b", i),
                         i % 4 < 2 ? bytes : "damaged");
  }
  const ImageDirectory photos = image_dataset_from_directory(
      folder_ / "photos", {.batch_size = 4, .height = 8, .width = 8, .shuffle = false});
  EXPECT_EQ(photos.dataset.resolve_policy(2), kData);
  const auto workers = iterators_of(photos.dataset, shares_of(2));
  const std::vector<Element> pieces = rest_of(*workers[0]);
  ASSERT_EQ(pieces.size(), 2u);
  for (const Element& piece : pieces) EXPECT_EQ(piece[0].shape(), (Shape{2, 8, 8, 3}));
  EXPECT_THROW(workers[1]->next(), DataError);
}

TEST_F(WorkerShares, APieceMayBeEmpty) {
  const auto workers =
      iterators_of(Dataset::range(5).map(add_seven).batch(2), shares_of(3, 1, kData));
  for (int batch = 0; batch < 3; ++batch) {
    const std::optional<Element> piece = workers[2]->next();
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->front().shape(), Shape{0});
    EXPECT_EQ(piece->piece->rows_of_batch, batch < 2 ? 2 : 1);
  }
  EXPECT_FALSE(workers[2]->next());
}

TEST_F(WorkerShares, ErrorsReachTheWorkersThatNeedTheSample) {
  const MapFunction fails = [](const Element& element) -> Element {
    require(element[0].values<std::int64_t>()[0] != 6, "six");
    return element;
  };
  for (const int parallel : {1, 2}) {
    const auto workers = iterators_of(
        Dataset::range(12).map(fails, {.spec = {{DType::I64, {}}}, .parallel = parallel}).batch(4),
        shares_of(2, 1, kData));
    EXPECT_EQ(rest_of(*workers[0]).size(), 3u);
    EXPECT_TRUE(workers[1]->next());
    EXPECT_THROW(workers[1]->next(), UsageError);
    EXPECT_THROW(workers[1]->next(), UsageError);
  }
}

TEST_F(WorkerShares, WhatCannotBeDividedIsRefused) {
  const auto message = [](const Dataset& dataset, const WorkerShare& share) {
    return message_of<UsageError>([&] { dataset.iterator({.share = share})->next(); });
  };
  const WorkerShare share = shares_of(2, 1, kData)[1];
  EXPECT_TRUE(contains(message(Dataset::range(5), share), "batch the samples with .batch(32)"));
  EXPECT_TRUE(contains(message(Dataset::range(5).batch(2).enumerate(), share), "has no rows"));
  EXPECT_TRUE(
      contains(message(table(5).batch(4).zip(Dataset::range(5).batch(3)), share), "4 and 3 rows"));
  EXPECT_TRUE(contains(message(table(5).batch(2), {.worker = 2, .workers = 2}), "worker 2 of 2"));
  EXPECT_TRUE(contains(message(table(5).batch(2), {.first_rank = 1, .end_rank = 1, .ranks = 2}),
                       "at least one"));
  EXPECT_THROW(table(5).batch(2).map(RandomMapFunction(add_random),
                                     {.spec = {{DType::I64, {2}}}, .rowwise = true}),
               UsageError);
}

// Any transformation may stand before and after the batch.
TEST_F(WorkerShares, RandomPipelinesGiveTheRowsOfOneWorker) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomSequence random(seed, hash_name("worker shares"));
    const auto some = [&](std::uint64_t most) {
      return 1 + static_cast<std::int64_t>(random.below(most));
    };
    const std::int64_t count = static_cast<std::int64_t>(random.below(30));
    Dataset dataset = random.below(2) == 0
                          ? Dataset::range(count)
                          : Dataset::from_tensor_slices({Tensor::of(count_up(count), {count})});
    std::string name = fmt::format("seed {}: {}", seed, count);
    const auto step = [&] {
      const std::uint64_t kind = random.below(11);
      name += fmt::format(".{}", kind);
      const std::vector<ElementSpec> spec = dataset.element_spec();
      const MapOptions options{.spec = spec, .parallel = static_cast<int>(some(3)), .seed = seed};
      const auto limit = some(20);
      if (kind == 0) dataset = dataset.shuffle(some(9), {.seed = seed});
      if (kind == 1) dataset = dataset.map(add_seven, options);
      if (kind == 2) dataset = dataset.map(RandomMapFunction(add_random), options);
      if (kind == 3) dataset = dataset.filter(not_third);
      if (kind == 4) dataset = dataset.take(limit);
      if (kind == 5) dataset = dataset.skip(limit / 5);
      if (kind == 6) dataset = dataset.repeat(some(2));
      if (kind == 7) dataset = dataset.prefetch(static_cast<int>(some(3)));
      if (kind == 8) dataset = dataset.cache();
      if (kind == 9) dataset = dataset.concatenate(dataset.take(2));
      if (kind == 10) dataset = dataset.shard(some(2), 0);
    };
    for (std::int64_t i = some(5); i > 1; --i) step();
    name += ".batch";
    dataset = dataset.batch(some(9), {.drop_remainder = random.below(3) == 0});
    for (std::int64_t i = some(4); i > 1; --i) step();
    SCOPED_TRACE(name);
    const std::vector<Element> batches = all_of(dataset, seed % 3);
    for (const int workers : {1, 2, 3, 5}) {
      const auto shares = shares_of(workers, static_cast<int>(some(2)), kData);
      const auto pieces = iterators_of(dataset, shares, seed % 3);
      const auto k = static_cast<std::size_t>(random.below(batches.size() + 1));
      for (std::size_t i = 0; i < k; ++i) ASSERT_TRUE(pieces[0]->next());
      const std::string position = pieces[0]->save();
      expect_pieces(iterators_of(dataset, shares, seed % 3), batches);
      const auto restored = iterators_of(dataset, shares_of(workers + 1, 1, kData));
      for (const auto& worker : restored) worker->restore(position);
      expect_pieces(restored, std::span(batches).subspan(k));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lockstep
