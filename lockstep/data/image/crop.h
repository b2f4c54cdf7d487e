// Which region of an image becomes the sample.
#pragma once

#include "lockstep/base/random.h"
#include "lockstep/data/image/image.h"

namespace lockstep {

// A region with a random area (as a fraction of the image) and a random ratio of width to height,
// as in torchvision.transforms.RandomResizedCrop.
struct RandomResizedCrop {
  float min_area = 0.08f;
  float max_area = 1.0f;
  float min_ratio = 3.0f / 4.0f;
  float max_ratio = 4.0f / 3.0f;
  int tries = 10;  // after that, the centre, with a ratio within the bounds
};

// UsageError if the bounds contradict each other.
void check(const RandomResizedCrop& options);

// How many random values are drawn depends only on the random sequence and the size of the image.
ImageRegion random_resized_crop(const ImageInfo& info, const RandomResizedCrop& options,
                                RandomSequence& random);

// The largest centred region with the ratio width : height, as Keras's crop_to_aspect_ratio takes
// it, with both sides multiplied by `fraction`.
ImageRegion crop_to_aspect(const ImageInfo& info, int width, int height, double fraction = 1);

}  // namespace lockstep
