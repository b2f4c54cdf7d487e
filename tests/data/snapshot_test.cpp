#include "lockstep/data/transformations/snapshot.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "data/positions.h"
#include "lockstep/data/datasets.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

Dataset counted(std::int64_t count, std::atomic<int>& made) {
  return Dataset::range(count).map(
      [&made](const Element& element) {
        ++made;
        return Element{Tensor::scalar(element[0].values<std::int64_t>()[0] * 3)};
      },
      {.spec = {{DType::I64, {}}}});
}

// Writes a snapshot whose files hold a few elements each.
void write_in_small_files(const Dataset& dataset, const std::filesystem::path& folder) {
  const Context context{.runtime = std::make_shared<Runtime>(Budget{.cores = 1}, host(), nullptr)};
  Input input(dataset.node(), context);
  ASSERT_TRUE(write_snapshot(folder, input, 500));
}

TEST(Snapshot, IsWrittenOnceAndThenRead) {
  TemporaryFolder folder;
  std::atomic<int> made = 0;
  const Dataset plain = counted(9, made).shuffle({.buffer = 4, .seed = 1});
  const std::vector<Element> expected = all_of(plain);
  made = 0;
  EXPECT_TRUE(same_elements(all_of(plain.snapshot(folder / "snapshot")), expected));
  EXPECT_EQ(made, 9);
  EXPECT_TRUE(same_elements(all_of(plain.snapshot(folder / "snapshot")), expected));
  const Dataset loaded = Dataset::load(folder / "snapshot");
  EXPECT_TRUE(same_elements(all_of(loaded), expected));
  EXPECT_EQ(made, 9);
  EXPECT_EQ(loaded.cardinality(), 9);
  EXPECT_EQ(loaded.element_spec(), plain.element_spec());
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Snapshot, IsCompleteAfterTheFirstElement) {
  TemporaryFolder folder;
  std::atomic<int> made = 0;
  {
    const auto iterator = counted(9, made).snapshot(folder / "snapshot").iterator();
    EXPECT_EQ(folder.files(), 0u);
    iterator->next();
  }
  EXPECT_EQ(numbers_of(Dataset::load(folder / "snapshot")).size(), 9u);
}

TEST(Snapshot, SamplesGetTheEpochOfThePass) {
  TemporaryFolder folder;
  const Dataset dataset = Dataset::range(4).snapshot(folder / "snapshot");
  for (const std::uint64_t epoch : {4, 0}) {
    const std::vector<Element> elements = all_of(dataset, epoch);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(elements[i].sample, (SampleId{epoch, i}));
  }
}

TEST(Snapshot, OfSeveralFilesIsReadInOrderAndFromAnyPosition) {
  TemporaryFolder folder;
  const Dataset plain =
      datasets::synthetic({{DType::F32, {3, 4}, true}, {DType::I32, {}}}, {.count = 40});
  write_in_small_files(plain, folder / "snapshot");
  EXPECT_GT(read_snapshot(folder / "snapshot").files.size(), 5u);
  const std::vector<Element> all = all_of(plain);
  const Dataset loaded = Dataset::load(folder / "snapshot");
  EXPECT_TRUE(same_elements(all_of(loaded), all));
  for (const std::int64_t k : {1, 7, 20, 39, 40, 41}) {
    const auto from = static_cast<std::size_t>(std::min<std::int64_t>(k, 40));
    EXPECT_TRUE(same_elements(all_of(loaded.skip(k)), std::span(all).subspan(from)));
  }
  expect_positions_hold("load", loaded);
  expect_positions_hold("shuffled", loaded.shuffle({.buffer = 9}).padded_batch(3).prefetch(2));
}

TEST(Snapshot, SavedPositionsAreExactWhetherItExistsOrNot) {
  TemporaryFolder folder;
  const Dataset plain = Dataset::range(7).shuffle({.buffer = 3, .seed = 2});
  Variants variants{"snapshot", {}};
  for (const char* name : {"a", "b", "c"}) {
    variants.datasets.push_back(plain.snapshot(folder / name).batch(2));
  }
  expect_positions_hold(variants);
  const auto iterator = variants.datasets[0].iterator();
  iterator->next();
  const std::string position = iterator->save();
  const auto restored = plain.snapshot(folder / "new").batch(2).iterator();
  restored->restore(position);
  EXPECT_TRUE(same_elements(rest_of(*restored), rest_of(*iterator)));
}

TEST(Snapshot, CanBeEmpty) {
  TemporaryFolder folder;
  EXPECT_TRUE(all_of(Dataset::range(0).snapshot(folder / "snapshot")).empty());
  EXPECT_EQ(Dataset::load(folder / "snapshot").cardinality(), 0);
}

TEST(Snapshot, OfAnotherDataSetIsRefused) {
  TemporaryFolder folder;
  all_of(Dataset::range(8).snapshot(folder / "snapshot"));
  const std::string message =
      message_of<UsageError>([&] { all_of(Dataset::range(9).snapshot(folder / "snapshot")); });
  EXPECT_TRUE(contains(message, "range(8)")) << message;
  EXPECT_TRUE(contains(message, "range(9)")) << message;
}

TEST(Snapshot, AnErrorLeavesNothing) {
  TemporaryFolder folder;
  const Dataset dataset = Dataset::range(9)
                              .map(
                                  [](const Element& element) {
                                    if (element[0].values<std::int64_t>()[0] == 5) {
                                      fail<DataError>("damaged");
                                    }
                                    return element;
                                  },
                                  {.spec = {{DType::I64, {}}}})
                              .snapshot(folder / "snapshot");
  const auto iterator = dataset.iterator();
  EXPECT_THROW(iterator->next(), DataError);
  EXPECT_THROW(iterator->next(), DataError);
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Snapshot, SeveralThreadsWriteOne) {
  TemporaryFolder folder;
  std::atomic<int> made = 0;
  const Dataset dataset = counted(200, made).snapshot(folder / "snapshot");
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { right += std::ssize(all_of(dataset)) == 200; });
    }
  }
  EXPECT_EQ(right, 4);
  EXPECT_EQ(made, 200);
}

TEST(Snapshot, TheIteratorCanBeDestroyedWhileItIsWritten) {
  TemporaryFolder folder;
  // The first data set gives its element; the second is a snapshot that never ends, which a thread
  // begins to write ahead of time.
  std::atomic<bool> begun = false;
  const auto endless = [&](std::uint64_t) {
    return [&]() -> std::optional<Element> {
      begun = true;
      return Element{Tensor::scalar<std::int64_t>(1)};
    };
  };
  const Dataset never =
      Dataset::from_generator(endless, {.spec = {{DType::I64, {}}}}).snapshot(folder / "snapshot");
  {
    const auto iterator =
        Dataset::range(1).concatenate(never).prefetch(2).with_budget({.cores = 1}).iterator();
    EXPECT_TRUE(iterator->next());
    while (!begun) std::this_thread::yield();
  }
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Snapshot, DamagedOnesAreDataErrors) {
  TemporaryFolder folder;
  const Dataset plain = datasets::synthetic({{DType::F32, {10}}}, {.count = 20});
  write_in_small_files(plain, folder / "good");
  EXPECT_THROW(Dataset::load(folder / "missing"), DataError);
  const auto with = [&](const std::string& name,
                        const std::function<void(std::filesystem::path)>& damage) {
    std::filesystem::copy(folder / "good", folder / name);
    damage(folder / name);
    return folder / name;
  };
  EXPECT_THROW(Dataset::load(
                   with("no description",
                        [](const auto& path) { std::filesystem::remove(path / "snapshot.json"); })),
               DataError);
  EXPECT_THROW(Dataset::load(with("no json",
                                  [](const auto& path) {
                                    std::ofstream(path / "snapshot.json") << "{\"format\": 3";
                                  })),
               DataError);
  EXPECT_THROW(Dataset::load(with(
                   "other json",
                   [](const auto& path) { std::ofstream(path / "snapshot.json") << "[1, 2]"; })),
               DataError);
  const auto read = [](const std::filesystem::path& path) { all_of(Dataset::load(path)); };
  EXPECT_THROW(
      read(with("a file is missing",
                [](const auto& path) { std::filesystem::remove(path / "elements-00001"); })),
      DataError);
  EXPECT_THROW(read(with("a file is another",
                         [](const auto& path) {
                           std::filesystem::copy(path / "elements-00000", path / "elements-00001",
                                                 std::filesystem::copy_options::overwrite_existing);
                         })),
               DataError);
}

TEST(Snapshot, InvalidArgumentsAreRefused) {
  TemporaryFolder folder;
  EXPECT_THROW(Dataset::range(3).repeat().snapshot(folder / "x"), UsageError);
  EXPECT_THROW(Dataset::range(3).shard().snapshot(folder / "x"), UsageError);
  EXPECT_THROW(Dataset::range(3).snapshot(""), UsageError);
  std::filesystem::create_directory(folder / "taken");
  std::ofstream(folder / "taken" / "thesis.txt") << "all of it";
  EXPECT_THROW(all_of(Dataset::range(3).snapshot(folder / "taken")), UsageError);
  EXPECT_TRUE(std::filesystem::exists(folder / "taken" / "thesis.txt"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_EQ(all_of(Dataset::range(3).snapshot(folder / "empty")).size(), 3u);
}

}  // namespace
}  // namespace lockstep
