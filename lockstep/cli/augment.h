// --augment: random augmentation of training samples. The random numbers depend on the seed, the
// epoch and the sample, so runs are reproducible.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image/reader.h"

namespace lockstep::cli {

// None: as for testing. Flip: half of the pictures are mirrored. Crop: flip and a random crop
// (pictures in memory: a shift by up to an eighth). Strong: crop and colour jitter.
enum class Augment { None, Flip, Crop, Strong };

Augment augment_by_name(const std::string& name);  // UsageError, listing the names
// "none, flip, crop, strong"
std::string augment_names();

// For pictures that are read from files.
void augment(ImageReaderOptions& reader, Augment how);
// For samples (height, width, channels) that are already in memory. UsageError if they are not
// pictures or `how` is Strong.
Dataset augmented(const Dataset& samples, Augment how, std::uint64_t seed);

}  // namespace lockstep::cli
