#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/data/datasets.h"

namespace lockstep {
namespace {

using Function = std::function<std::optional<Element>()>;

const std::vector<ElementSpec> kNumber = {{DType::I64, {}}};

Function counting(std::int64_t from, std::int64_t count, std::int64_t add = 0) {
  return [at = from, count, add]() mutable -> std::optional<Element> {
    if (at == count) return std::nullopt;
    return Element{Tensor::scalar(add + at++)};
  };
}

TEST(Generator, IsCalledAgainInEveryEpoch) {
  const Dataset dataset = Dataset::from_generator(
      [](std::uint64_t epoch) { return counting(0, 4, static_cast<std::int64_t>(100 * epoch)); },
      {.spec = kNumber});
  EXPECT_EQ(numbers_of(dataset, 2), count_up(4, 200));
  EXPECT_EQ(numbers_of(dataset.repeat(2)),
            (std::vector<std::int64_t>{0, 1, 2, 3, 100, 101, 102, 103}));
  expect_ids_differ(all_of(dataset.repeat(3)));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  EXPECT_EQ(all_of(dataset, 2)[3].sample, (SampleId{2, 3}));
}

TEST(Generator, SavedPositionsAreExact) {
  const Dataset dataset =
      Dataset::from_generator([](std::uint64_t) { return counting(0, 12); }, {.spec = kNumber});
  expect_positions_hold("generator", dataset);
  expect_positions_hold("shuffled", dataset.shuffle({.buffer = 4, .seed = 2}).batch(2).prefetch(2));
}

TEST(Generator, ASeekableOneDoesNotReplayEarlierElements) {
  std::int64_t made = 0;
  const auto seek = [&](std::uint64_t, std::int64_t from) -> Function {
    return [&made, inner = counting(from, 12)]() mutable {
      ++made;
      return inner();
    };
  };
  const Dataset dataset =
      Dataset::from_generator(nullptr, {.spec = kNumber, .seek = seek, .cardinality = 12});
  expect_positions_hold("seeking", dataset);
  const auto iterator = dataset.iterator();
  rest_of(*iterator, 9);
  const auto restored = dataset.iterator();
  made = 0;
  restored->restore(iterator->save());
  EXPECT_EQ(numbers_of(rest_of(*restored)), count_up(3, 9));
  EXPECT_EQ(made, 4);
  made = 0;
  EXPECT_EQ(numbers_of(dataset.skip(10)), count_up(2, 10));
  EXPECT_EQ(made, 3);
  EXPECT_TRUE(all_of(dataset.skip(13)).empty());
}

// Numbers that each depend on the one before, so the last one is the state of a pass.
ResumingGenerator chained(std::int64_t count, std::int64_t& made) {
  return [count, &made](std::uint64_t epoch, const std::optional<std::string>& state) {
    struct Chain {
      std::int64_t at = 0;
      std::int64_t last = 0;
    };
    auto chain = std::make_shared<Chain>();
    chain->last = static_cast<std::int64_t>(epoch);
    if (state) std::memcpy(chain.get(), state->data(), sizeof(Chain));
    return SavingPass{.next = [chain, count, &made]() -> std::optional<Element> {
                        ++made;
                        if (chain->at == count) return std::nullopt;
                        ++chain->at;
                        chain->last = (5 * chain->last + 3) % 101;
                        return Element{Tensor::scalar(chain->last)};
                      },
                      .save =
                          [chain] {
                            return std::string(reinterpret_cast<const char*>(chain.get()),
                                               sizeof(Chain));
                          }};
  };
}

TEST(Generator, OneThatSavesItsStateDoesNotReplayEarlierElements) {
  std::int64_t made = 0;
  const Dataset dataset =
      Dataset::from_generator(nullptr, {.spec = kNumber, .resume = chained(500, made)});
  const std::vector<std::int64_t> all = numbers_of(dataset);
  ASSERT_EQ(all.size(), 500u);
  const auto iterator = dataset.iterator();
  rest_of(*iterator, 490);
  const auto restored = dataset.iterator();
  made = 0;
  restored->restore(iterator->save());
  EXPECT_EQ(numbers_of(rest_of(*restored)), std::vector(all.begin() + 490, all.end()));
  EXPECT_EQ(made, 11);
  EXPECT_TRUE(restored->report().stages.back().notes.empty());
  // Below stages that run ahead, a few more elements are computed, but never all.
  const Dataset ahead = dataset.batch(7).prefetch(3);
  const auto batches = ahead.iterator();
  rest_of(*batches, 70);
  const auto later = ahead.iterator();
  made = 0;
  later->restore(batches->save());
  EXPECT_EQ(later->next()->front().values<std::int64_t>()[0], all[490]);
  EXPECT_LT(made, 250);
  const Dataset few =
      Dataset::from_generator(nullptr, {.spec = kNumber, .resume = chained(12, made)});
  expect_positions_hold("resuming", few);
  expect_positions_hold("resuming below others",
                        few.shuffle({.buffer = 4, .seed = 2}).batch(2).repeat(2).prefetch(2));
}

TEST(Generator, SaysThatAPositionIsReplayedAndHowToAvoidIt) {
  const Dataset dataset =
      Dataset::from_generator([](std::uint64_t) { return counting(0, 12); }, {.spec = kNumber});
  const std::string text = dataset.explain().text();
  EXPECT_TRUE(contains(text, "makes all elements before it again")) << text;
  EXPECT_TRUE(contains(text, "GeneratorOptions::seek or resume")) << text;
  const auto iterator = dataset.iterator();
  rest_of(*iterator, 9);
  const auto restored = dataset.iterator();
  restored->restore(iterator->save());
  rest_of(*restored);
  const std::string again = restored->report().text();
  EXPECT_TRUE(contains(again, "generator: made 9 elements again")) << again;
  const auto seek = [](std::uint64_t, std::int64_t from) { return counting(from, 12); };
  EXPECT_TRUE(Dataset::from_generator(nullptr, {.spec = kNumber, .seek = seek})
                  .explain()
                  .stages.back()
                  .notes.empty());
}

TEST(Generator, AStateThatCannotBeSavedIsAnErrorThatSaysWhere) {
  const auto resume = [](std::uint64_t, const std::optional<std::string>&) {
    return SavingPass{.next = counting(0, 12),
                      .save = []() -> std::string { throw std::runtime_error("no pen"); }};
  };
  const auto iterator =
      Dataset::from_generator(nullptr, {.spec = kNumber, .resume = resume}).iterator();
  rest_of(*iterator, 2);
  EXPECT_EQ(message_of<DataError>([&] { iterator->save(); }),
            "[generator] saving the state after 2 elements of epoch 0: no pen");
  const auto seek = [](std::uint64_t, std::int64_t from) { return counting(from, 12); };
  EXPECT_THROW(Dataset::from_generator(nullptr, {.spec = kNumber, .seek = seek, .resume = resume}),
               UsageError);
}

Dataset failing_at(std::int64_t bad, OnError on_error) {
  return Dataset::from_generator(
      [bad](std::uint64_t) -> Function {
        return [inner = counting(0, 6), bad]() mutable {
          std::optional<Element> element = inner();
          if (element && (*element)[0].values<std::int64_t>()[0] == bad) {
            throw std::runtime_error("out of ideas");
          }
          return element;
        };
      },
      {.spec = kNumber, .name = "ideas", .on_error = on_error});
}

TEST(Generator, ItsExceptionsNameStageAndElement) {
  const auto iterator = failing_at(3, OnError::Raise).iterator();
  rest_of(*iterator, 3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<DataError>([&] { iterator->next(); }),
              "[generator ideas] sample 3 of epoch 0: out of ideas");
  }
  const Dataset at_once = Dataset::from_generator(
      [](std::uint64_t) -> Function { throw std::runtime_error("no power"); }, {.spec = kNumber});
  EXPECT_EQ(message_of<DataError>([&] { all_of(at_once); }),
            "[generator] the beginning of epoch 0: no power");
}

TEST(Generator, ErrorsCanBeSkipped) {
  const Dataset dataset = failing_at(3, OnError::Skip);
  const auto iterator = dataset.iterator();
  EXPECT_EQ(numbers_of(rest_of(*iterator)), (std::vector<std::int64_t>{0, 1, 2, 4, 5}));
  EXPECT_EQ(iterator->report().skipped, 1);
  expect_positions_hold("passing over", dataset);
}

TEST(Generator, OneThatAlwaysFailsIsAbandoned) {
  const Dataset dataset = Dataset::from_generator(
      [](std::uint64_t) -> Function {
        return []() -> std::optional<Element> { throw std::runtime_error("never"); };
      },
      {.spec = kNumber, .on_error = OnError::Skip});
  EXPECT_THROW(all_of(dataset), DataError);
}

TEST(Generator, ItsElementsAreChecked) {
  const auto giving = [](Element element) {
    return Dataset::from_generator(
        [element](std::uint64_t) -> Function {
          return [element] { return std::optional(element); };
        },
        {.spec = {{DType::F32, {2}}}});
  };
  EXPECT_EQ(giving({Tensor(DType::F32, {2})}).take(3).batch(3).iterator()->next()->size(), 1u);
  EXPECT_THROW(giving({Tensor(DType::F32, {3})}).iterator()->next(), UsageError);
  EXPECT_THROW(giving({Tensor(DType::I32, {2})}).iterator()->next(), UsageError);
  EXPECT_THROW(giving({Tensor()}).iterator()->next(), UsageError);
  EXPECT_THROW(giving({}).iterator()->next(), UsageError);
  EXPECT_THROW(Dataset::from_generator(nullptr, {.spec = kNumber}), UsageError);
  EXPECT_THROW(Dataset::from_generator([](std::uint64_t) { return counting(0, 1); }, {}),
               UsageError);
}

TEST(Range, CountsUp) {
  EXPECT_EQ(numbers_of(Dataset::range(5)), count_up(5));
  EXPECT_EQ(numbers_of(Dataset::range(5).skip(3)), count_up(2, 3));
  EXPECT_EQ(Dataset::range(5).cardinality(), 5);
  EXPECT_THROW(Dataset::range(-1), UsageError);
  expect_positions_hold("range", Dataset::range(5));
}

TEST(SyntheticSignature, GivesTheRequestedElements) {
  const std::vector<ElementSpec> spec = {
      {DType::F32, {50, 40}}, {DType::F64, {3}}, {DType::F16, {7}},  {DType::BF16, {7}},
      {DType::I32, {9}},      {DType::I64, {}},  {DType::U8, {100}}, {DType::Bool, {4}}};
  const Dataset dataset = datasets::synthetic(spec, {.count = 6, .seed = 3, .classes = 4});
  EXPECT_EQ(dataset.element_spec(), spec);
  EXPECT_EQ(dataset.cardinality(), 6);
  const std::vector<Element> elements = all_of(dataset);
  ASSERT_EQ(elements.size(), 6u);
  for (const Element& element : elements) {
    for (std::size_t i = 0; i < spec.size(); ++i) {
      EXPECT_EQ(element[i].dtype(), spec[i].dtype);
      EXPECT_EQ(element[i].shape(), spec[i].shape);
    }
    double sum = 0;
    double squares = 0;
    for (const float value : element[0].values<float>()) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / 2000, 0, 0.12);
    EXPECT_NEAR(squares / 2000, 1, 0.2);
    for (const std::int32_t label : element[4].values<std::int32_t>()) {
      EXPECT_GE(label, 0);
      EXPECT_LT(label, 4);
    }
  }
  EXPECT_FALSE(elements[0][0].same_bits(elements[1][0]));
  EXPECT_TRUE(same_elements(all_of(dataset), elements));
  EXPECT_TRUE(all_of(dataset, 4)[5][0].same_bits(elements[5][0]));
  EXPECT_FALSE(
      all_of(datasets::synthetic(spec, {.count = 6, .seed = 4}))[0][0].same_bits(elements[0][0]));
}

TEST(SyntheticSignature, VaryingExtentsStayWithinTheGivenOnes) {
  const Dataset dataset = datasets::synthetic({{DType::U8, {5, 7}, true}}, {.count = 60});
  bool different = false;
  for (const Element& element : all_of(dataset)) {
    const Shape& shape = element[0].shape();
    EXPECT_TRUE(shape[0] >= 1 && shape[0] <= 5 && shape[1] >= 1 && shape[1] <= 7) << shape.str();
    different = different || !(shape == all_of(dataset.take(1))[0][0].shape());
  }
  EXPECT_TRUE(different);
}

TEST(SyntheticSignature, SavedPositionsAreExactAndItMayBeEndless) {
  expect_positions_hold("synthetic", datasets::synthetic({{DType::F32, {3}, true}}, {.count = 7}));
  const Dataset endless = datasets::synthetic({{DType::F32, {3}}}, {.count = -1});
  EXPECT_EQ(endless.cardinality(), std::nullopt);
  EXPECT_EQ(all_of(endless.skip(1'000'000'000).take(3)).size(), 3u);
  EXPECT_THROW(datasets::synthetic({{DType::F32, {3}}}, {.count = -2}), UsageError);
}

}  // namespace
}  // namespace lockstep
