#include "lockstep/kernels/cuda/pointwise/pointwise_table.h"

namespace lockstep {
namespace {

class TableWriter {
 public:
  TableWriter(const PointwiseForm& form, const PointwiseShape& shape, std::span<const DType> inputs,
              const Binding& binding)
      : form_(form),
        shape_(shape),
        inputs_(inputs),
        results_(result_dtypes(form.program, inputs)),
        binding_(binding) {}

  void add(PointwiseLaunch& launch, std::size_t segment, std::int64_t elements) {
    word_ = launch.table.data() + launch.segments * shape_.segment_words();
    vectorised_ = true;
    for (std::size_t i = 0; i < form_.operands; ++i) {
      put(binding_.inputs[segment * form_.operands + i]);
      if (!form_.scalar[i]) expect_vectors(inputs_[i]);
    }
    std::size_t output = segment * form_.outputs();
    for (std::size_t i = 0; i < form_.results.size(); ++i) {
      if (form_.targets[i] >= 0) continue;
      put(binding_.outputs[output++]);
      expect_vectors(results_[static_cast<std::size_t>(form_.results[i])]);
    }
    *word_++ = static_cast<std::uint64_t>(elements);
    *word_ = launch.blocks | (vectorised_ ? std::uint64_t{1} << 32 : 0);
    launch.blocks += static_cast<unsigned>((elements + shape_.tile() - 1) / shape_.tile());
    launch.table.back() = static_cast<std::uint64_t>(++launch.segments);
  }

 private:
  void put(const std::byte* address) { *word_++ = reinterpret_cast<std::uintptr_t>(address); }

  // Clears vectorised_ if the address put last is not aligned to vectors of its elements.
  void expect_vectors(DType dtype) {
    const std::uint64_t bytes = size_of(dtype) * static_cast<std::uint64_t>(shape_.vector_size);
    vectorised_ = vectorised_ && word_[-1] % bytes == 0;
  }

  const PointwiseForm& form_;
  const PointwiseShape& shape_;
  std::span<const DType> inputs_;
  std::vector<DType> results_;
  const Binding& binding_;
  std::uint64_t* word_ = nullptr;
  bool vectorised_ = true;
};

}  // namespace

std::vector<PointwiseLaunch> pointwise_launches(const PointwiseForm& form,
                                                const PointwiseShape& shape,
                                                std::span<const DType> inputs,
                                                std::span<const std::int64_t> elements,
                                                const Binding& binding) {
  TableWriter writer(form, shape, inputs, binding);
  std::vector<PointwiseLaunch> launches;
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    if (elements[segment] == 0) continue;
    if (launches.empty() || launches.back().segments == shape.capacity) {
      launches.emplace_back().table.resize(static_cast<std::size_t>(shape.table_words()));
    }
    writer.add(launches.back(), segment, elements[segment]);
  }
  return launches;
}

}  // namespace lockstep
