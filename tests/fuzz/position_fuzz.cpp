// A saved position with any bytes changed, or arbitrary bytes, gives a UsageError, a DataError or
// elements. The input is: the pipeline, the number of elements before saving, whether elements are
// saved as tensors next to the position, and then changes of three bytes each (offset, two bytes;
// value, one byte); or, if the third byte modulo 3 is 2, the position itself.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace {

using namespace lockstep;

Element record_of(const Element& number) {
  const std::int64_t n = number[0].values<std::int64_t>()[0];
  return Element(std::vector<Tensor>{Tensor::of(std::vector<float>(4, static_cast<float>(n)), {4}),
                                     Tensor::scalar(n % 2 == 0)});
}

Dataset pipeline(unsigned which) {
  const Dataset numbers = Dataset::range(12);
  const Dataset table =
      Dataset::from_tensor_slices({Tensor(DType::F32, {12, 3}), Tensor(DType::I32, {12})});
  switch (which % 8) {
    case 0:
      return numbers.map(MapFunction(record_of)).shuffle({.buffer = 5, .seed = 1});
    case 1:
      return table.shuffle({.buffer = 5, .seed = 1}).batch(4);
    case 2:
      return table.shuffle({.buffer = 12, .seed = 1}).repeat(2).batch(5);
    case 3:
      return numbers.interleave(DatasetFunction([](const Element&) { return Dataset::range(3); }),
                                {.cycle = 2});
    case 4:
      return numbers.map(MapFunction(record_of))
          .shuffle({.buffer = 3, .seed = 2})
          .take(9)
          .skip(1)
          .enumerate()
          .batch(2)
          .prefetch(2);
    case 5:
      return numbers.concatenate(numbers).zip(numbers.repeat(3)).batch(3).unbatch();
    case 6:
      return numbers
          .filter(Predicate(
              [](const Element& number) { return number[0].values<std::int64_t>()[0] % 3 != 0; }))
          .cache()
          .shuffle({.buffer = 4, .seed = 3});
    default:
      return table.map(MapFunction([](const Element& row) { return row; }), {.parallel = 2})
          .batch(3)
          .prefetch(1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const Dataset dataset = pipeline(data[0]);
  const auto saved = dataset.iterator();
  for (unsigned i = 0; i < data[1] % 16u; ++i) saved->next();
  IteratorState state;
  if (data[2] % 3 == 0) state.bytes = saved->save();
  if (data[2] % 3 == 1) state = saved->save_state();
  if (data[2] % 3 == 2) {
    state.bytes.assign(reinterpret_cast<const char*>(data) + 3, size - 3);
  } else {
    for (std::size_t i = 3; i + 3 <= size; i += 3) {
      const std::size_t place = (data[i] | data[i + 1] << 8) % state.bytes.size();
      state.bytes[place] = static_cast<char>(data[i + 2]);
    }
  }
  const auto restored = dataset.iterator();
  try {
    restored->restore_state(state);
    for (int i = 0; i < 50 && restored->next(); ++i) {
    }
  } catch (const UsageError&) {
  } catch (const DataError&) {
  }
  return 0;
}
