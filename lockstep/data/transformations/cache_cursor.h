// What the caches in memory and in a file have in common: the first pass keeps what the input
// gives, later ones are served from there.
//
// The input is always read in epoch 0, whichever epoch the pass is in: so what is kept does not
// depend on who kept it when, and a position means the same with the cache and without.
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "lockstep/data/node.h"

namespace lockstep {

// The epoch of a sample that is given in a pass over what was kept: that of the pass, and apart
// from it what the epoch in the input was, which is not 0 where the input repeats something.
inline std::uint64_t epoch_in_pass(std::uint64_t pass, std::uint64_t in_input) {
  return pass + (in_input << 31);  // an iterator's epoch has 31 bits
}

// Where one cursor keeps elements, or finds them.
class CacheStore {
 public:
  virtual ~CacheStore() = default;

  // Looks for what a whole pass has kept; false where there is nothing.
  virtual bool open() = 0;
  // Of what was opened.
  virtual std::int64_t count() const = 0;
  virtual Element read(std::int64_t number) = 0;

  // Begins to keep elements; false where another does, or where there is something meanwhile.
  virtual bool begin() = 0;
  // The next one. What was kept is lost when this throws.
  virtual void keep(const Element& element) = 0;
  // The pass has ended: from now on others find what was kept. The last call.
  virtual void finish() = 0;
};

class CacheCursor final : public Cursor {
 public:
  // For a pass in `epoch`; the input is one in epoch 0.
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
  bool at_input_ = true;  // the input is where we are; otherwise at its beginning
  std::exception_ptr error_;
  Input input_;
};

}  // namespace lockstep
