// What the caches in memory and in a file have in common: the first pass stores the elements of the
// input, later passes read them back.
//
// The input is always read in epoch 0, whatever the epoch of the pass: so the contents do not
// depend on which pass filled the cache, and a position means the same with and without it.
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

// The epoch of a sample returned by a pass over cached elements: combines the epoch of the pass
// with the sample's epoch in the input, which is not 0 if the input repeats a data set.
inline std::uint64_t epoch_in_pass(std::uint64_t pass, std::uint64_t in_input) {
  return pass + (in_input << 31);  // an iterator's epoch has 31 bits
}

// Where a cursor stores elements and reads them back.
class CacheStore {
 public:
  virtual ~CacheStore() = default;

  // Opens the elements of a complete pass; false if there are none.
  virtual bool open() = 0;
  // Of the elements that were opened.
  virtual std::int64_t count() const = 0;
  virtual Element read(std::int64_t number) = 0;

  // Starts to store elements; false if another cursor does, or has finished meanwhile.
  virtual bool begin() = 0;
  // Stores the next element. If this throws, the elements stored so far are lost.
  virtual void keep(const Element& element) = 0;
  // The pass has ended: makes the elements available to others. The last call.
  virtual void finish() = 0;
};

class CacheCursor final : public Cursor {
 public:
  // For a pass in `epoch`; the input must be in epoch 0.
  CacheCursor(Input input, std::uint64_t epoch, std::unique_ptr<CacheStore> store);

  std::optional<Element> next() override;
  std::int64_t skip(std::int64_t count) override;
  void save(PositionWriter& state) const override;
  void restore(PositionReader& state) override;
  std::int64_t state_size() const override;

 private:
  enum class Mode { Undecided, Serving, Keeping, Passing };

  void begin();
  std::optional<Element> keep_next();

  std::uint64_t epoch_;
  std::unique_ptr<CacheStore> store_;
  Mode mode_ = Mode::Undecided;
  std::int64_t given_ = 0;
  bool at_input_ = true;  // whether the input is at our position
  std::exception_ptr error_;
  Input input_;
};

}  // namespace lockstep
