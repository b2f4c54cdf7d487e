// Code that users of tf.data write out of habit.
#include <gtest/gtest.h>

#include <ranges>
#include <sstream>

#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

using Values = std::vector<float>;

Tensor column(Values values) {
  const std::int64_t count = std::ssize(values);
  return Tensor::of(values, {count});
}

Dataset pairs(std::int64_t count) {
  Values x;
  Values y;
  for (std::int64_t i = 0; i < count; ++i) {
    x.push_back(static_cast<float>(i));
    y.push_back(static_cast<float>(10 * i));
  }
  return Dataset::from_tensor_slices({column(x), column(y)});
}

Values firsts(const Dataset& dataset) {
  Values values;
  for (const Element& element : dataset) values.push_back(static_cast<float>(element[0].item()));
  return values;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

TEST(Habits, FromTensorsIsOneElement) {
  const Tensor x = Tensor::of<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Dataset dataset = Dataset::from_tensors({x, Tensor::scalar<std::int32_t>(7)});
  EXPECT_EQ(dataset.cardinality(), 1);
  const auto iterator = dataset.iterator();
  const std::optional<Element> whole = iterator->next();
  ASSERT_TRUE(whole);
  EXPECT_TRUE((*whole)[0].same_bits(x));
  EXPECT_TRUE((*whole)[1].same_bits(Tensor::scalar<std::int32_t>(7)));
  EXPECT_FALSE(iterator->next());
  EXPECT_EQ(Dataset::from_tensors(x).element_spec(),
            (std::vector<ElementSpec>{{DType::F32, {3, 2}}}));
  EXPECT_THROW(Dataset::from_tensors({}), UsageError);
  EXPECT_THROW(Dataset::from_tensors(Tensor()), UsageError);
}

TEST(Habits, FromTensorSlicesTakesOneTensorToo) {
  EXPECT_EQ(firsts(Dataset::from_tensor_slices(column({3, 1, 2}))), (Values{3, 1, 2}));
}

TEST(Habits, ShuffleTakesASizeAndOptions) {
  const Dataset dataset = pairs(50);
  const ShuffleOptions options{.buffer = 10, .seed = 3};
  EXPECT_EQ(firsts(dataset.shuffle(10, {.seed = 3})), firsts(dataset.shuffle(options)));
  EXPECT_EQ(firsts(dataset.shuffle(10)), firsts(dataset.shuffle({.buffer = 10})));
  EXPECT_EQ(firsts(dataset.shuffle(1)), firsts(dataset));
  EXPECT_THROW(dataset.shuffle(10, {.buffer = 20}), UsageError);
}

TEST(Habits, LoopsUnpackElementsOfTwo) {
  double sum = 0;
  for (auto& [x, y] : pairs(4).batch(2)) {
    EXPECT_EQ(x.shape(), Shape({2}));
    for (const float value : y.values<float>()) sum += value;
  }
  EXPECT_EQ(sum, 60);
  const Dataset dataset = pairs(3);
  for (const auto& [x, y] : dataset) EXPECT_EQ(y.item(), 10 * x.item());
  for (auto [x, y] : dataset) EXPECT_EQ(y.item(), 10 * x.item());
}

TEST(Habits, UnpackingAnotherNumberOfTensorsIsAnError) {
  const Dataset three = pairs(2).enumerate();
  EXPECT_THROW(
      {
        for (auto& [x, y] : three) ADD_FAILURE() << x.item() << y.item();
      },
      UsageError);
  for (const Element& element : three) EXPECT_EQ(element.size(), 3u);
}

TEST(Habits, EachLoopIsTheNextEpoch) {
  const Dataset dataset = pairs(60).shuffle(60, {.seed = 1});
  const Values first = firsts(dataset);
  const Values second = firsts(dataset);
  EXPECT_NE(first, second);
  std::vector<Values> by_epoch;
  for (const std::uint64_t epoch : {0, 1}) {
    const auto iterator = dataset.iterator(epoch);
    Values values;
    while (const auto element = iterator->next()) {
      values.push_back(static_cast<float>((*element)[0].item()));
    }
    by_epoch.push_back(values);
  }
  EXPECT_EQ(by_epoch, (std::vector{first, second}));
}

TEST(Habits, ALoopCanStopAndAnIteratorContinues) {
  const Dataset dataset = pairs(6);
  std::string position;
  for (auto it = dataset.begin(); it != dataset.end(); ++it) {
    if ((*it)[0].item() == 2) {
      position = it.position().save();
      break;
    }
  }
  const auto rest = dataset.iterator();
  rest->restore(position);
  EXPECT_EQ((*rest->next())[0].item(), 3);
}

TEST(Habits, LoopsOverEmptyAndEndlessDataSets) {
  for (const Element& element : pairs(0)) ADD_FAILURE() << element.size();
  int seen = 0;
  for (const Element& element : pairs(2).repeat()) {
    EXPECT_EQ(element.size(), 2u);
    if (++seen == 5) break;
  }
  EXPECT_EQ(seen, 5);
}

TEST(Habits, FunctionsTakeTheTwoTensors) {
  const Dataset swapped = pairs(3).map([](const Tensor& x, const Tensor& y) -> Element {
    return {y, x};
  });
  EXPECT_EQ(firsts(swapped), (Values{0, 10, 20}));
  const Dataset large =
      pairs(4).filter([](const Tensor&, const Tensor& y) { return y.item() > 10; });
  EXPECT_EQ(firsts(large), (Values{2, 3}));
  EXPECT_EQ(firsts(pairs(2).map([](const auto& element) { return element; })), (Values{0, 1}));
}

TEST(Habits, MinusOneIsAll) {
  EXPECT_EQ(firsts(pairs(3).take(-1)), (Values{0, 1, 2}));
  EXPECT_EQ(firsts(pairs(3).skip(-1)), Values());
}

TEST(Habits, ADataSetPrintsWhatItsElementsAre) {
  EXPECT_EQ(printed(pairs(5).batch(2)), "Dataset(3 elements: f32 (2,), f32 (2,))");
  EXPECT_EQ(printed(pairs(1)), "Dataset(1 element: f32 (), f32 ())");
  EXPECT_EQ(printed(pairs(5).repeat()), "Dataset(infinitely many elements: f32 (), f32 ())");
  EXPECT_EQ(printed(pairs(5).filter([](const Element&) { return true; })),
            "Dataset(elements: f32 (), f32 ())");
  EXPECT_EQ(printed(pairs(5).element_spec()), "f32 (), f32 ()");
}

}  // namespace
}  // namespace lockstep
