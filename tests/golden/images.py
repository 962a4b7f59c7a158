"""Images in the prompt of a vision-language model: random patches, or a picture through the image processor."""
import json
from pathlib import Path

import numpy as np
import torch

GRID = [1, 4, 6]
TEXT_BEFORE = 4


class Text:
    """A prompt without images."""

    def __init__(self, prompt: list):
        self.prompt = prompt
        self.facts = {}

    def inputs(self, model, ids: torch.Tensor) -> dict:
        """Keyword arguments of a forward pass over `ids` from the start."""
        return {}


class Picture(Text):
    """A prompt with one image after its first tokens."""

    def __init__(self, model, prompt: list, pixels: torch.Tensor, grid: torch.Tensor, out: Path):
        config = model.config
        self.image_token, self.pixels, self.grid = config.image_token_id, pixels, grid
        count = int(grid.prod()) // config.vision_config.spatial_merge_size**2
        placeholders = [config.vision_start_token_id] + [self.image_token] * count + [config.vision_end_token_id]
        super().__init__(prompt[:TEXT_BEFORE] + placeholders + prompt[TEXT_BEFORE:])
        embeds = model.model.get_image_features(pixels, grid, return_dict=True).pooler_output
        ids = torch.tensor([self.prompt])
        positions, delta = model.model.get_rope_index(ids, self.kinds(ids), image_grid_thw=grid)
        self.facts = {
            "image_grid_thw": grid.tolist(),
            "num_image_tokens": count,
            "mrope_position_delta": int(delta[0, 0]),
        }
        np.save(out / "pixel_values.npy", pixels.numpy())
        np.save(out / "image_embeds.npy", torch.cat(list(embeds)).numpy())
        np.save(out / "mrope_position_ids.npy", positions[:, 0].numpy())

    def kinds(self, ids: torch.Tensor) -> torch.Tensor:
        """1 for tokens of an image, 0 for text."""
        return (ids == self.image_token).long()

    def inputs(self, model, ids: torch.Tensor) -> dict:
        model.model.rope_deltas = None
        return {"pixel_values": self.pixels, "image_grid_thw": self.grid, "mm_token_type_ids": self.kinds(ids)}


def place(model, config: dict, prompt: list, generator: torch.Generator, out: Path) -> Text:
    """The prompt, with an image where the model sees any; writes patches, their embeddings and positions."""
    if "vision_config" not in config:
        return Text(prompt)
    if "picture" in config:
        return Picture(model, prompt, *processed(config["picture"], out), out)
    vision = model.config.vision_config
    grid = torch.tensor([GRID])
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(int(grid.prod()), width, generator=generator)
    return Picture(model, prompt, pixels, grid, out)


def processed(picture: dict, out: Path):
    """(patches, grid) of a file as the processor of the published models makes them; writes preprocessor_config.json."""
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = picture["preprocessor_config"]
    (out / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
    processor = Qwen2VLImageProcessorPil(**settings)
    image = Image.open(Path(__file__).parent / picture["file"])
    result = processor(images=[image], return_tensors="pt")
    return result["pixel_values"], result["image_grid_thw"]
