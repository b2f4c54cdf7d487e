// Dataset: describes where samples come from and what is done to them. It holds no position and
// can be iterated any number of times, by several iterators at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/shape.h"
#include "lockstep/data/iterator.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The dtype and shape of one component of an element. Batched components have a leading axis whose
// extent, in the spec, is the batch size asked for (the last batch may be shorter).
struct ElementSpec {
  DType dtype = DType::F32;
  Shape shape;
  bool operator==(const ElementSpec&) const = default;
};

// "As many as it takes": for prefetch and parallelism.
inline constexpr int AUTOTUNE = -1;

struct ShuffleOptions {
  std::int64_t buffer = 0;  // as many as the data set has: a uniform shuffle
  std::uint64_t seed = 0;
  bool reshuffle_each_iteration = true;
};
struct BatchOptions {
  bool drop_remainder = false;
};

// Makes an element of an element. It must not write into the tensors that it is given, and must
// give the same result for the same element, or saved positions mean nothing.
using MapFunction = std::function<Element(const Element&)>;
struct MapOptions {
  // What the function returns. Where nothing is said, it is called once with zeros to find out.
  std::vector<ElementSpec> spec = {};
};

class DatasetNode;

class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const DatasetNode> node) : node_(std::move(node)) {}

  // Slices of tensors along axis 0, which all share: element i is {t0[i], t1[i], …}.
  static Dataset from_tensors(std::vector<Tensor> tensors);

  Dataset shuffle(ShuffleOptions options) const;
  Dataset batch(std::int64_t size, BatchOptions options = {}) const;
  Dataset take(std::int64_t count) const;
  Dataset skip(std::int64_t count) const;
  Dataset repeat(std::int64_t count = -1) const;  // -1: for ever
  Dataset map(MapFunction function, MapOptions options = {}) const;
  // Makes elements ahead of their use, on a thread of its own. A position saved with prefetch can
  // be restored without, and the other way round.
  Dataset prefetch(int buffer = AUTOTUNE) const;

  std::vector<ElementSpec> element_spec() const;
  // How many elements an epoch has; nothing where that is not known, or for ever.
  std::optional<std::int64_t> cardinality() const;
  // A new iterator at the beginning of an epoch; what is shuffled differs from epoch to epoch.
  std::unique_ptr<Iterator> iterator(std::uint64_t epoch = 0) const;

 private:
  std::shared_ptr<const DatasetNode> node_;
};

}  // namespace lockstep
