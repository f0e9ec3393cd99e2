import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pagefacets.errors import PageError
from pagefacets.pages import images
from pagefacets.pages.source import open_pages


def picture(mode="RGB", size=(60, 40)):
    """A picture whose four corners differ, so that no turn goes unnoticed."""
    drawn = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(drawn)
    width, height = size
    draw.rectangle([0, 0, width // 3, height // 3], fill="red")
    draw.rectangle([2 * width // 3, 0, width, height // 3], fill="blue")
    draw.rectangle([0, 2 * height // 3, width // 3, height], fill="black")
    return drawn.convert(mode)


def pixels(image):
    return np.asarray(image.convert("RGB")).astype(int)


@pytest.fixture
def saved(tmp_path):
    """The page of an image saved with Pillow's options."""

    def save(image, name="a.png", **options):
        image.save(tmp_path / name, **options)
        (page,) = open_pages(tmp_path / name)
        return page

    return save


@pytest.mark.parametrize(
    ("name", "options", "off"),
    [
        ("a.png", {}, 0),
        ("a.PNG", {}, 0),
        ("a.jpg", {"quality": 95, "subsampling": 0}, 40),
        ("a.JPEG", {"quality": 95, "progressive": True, "subsampling": 0}, 40),
        ("a.tif", {}, 0),
        ("a.tiff", {"compression": "tiff_lzw"}, 0),
        ("a.webp", {"lossless": True}, 0),
        ("a.bmp", {}, 0),
        ("a.gif", {}, 0),
    ],
)
def test_formats(saved, name, options, off):
    page = saved(picture(), name, **options)
    assert (page.id, page.source, page.number, page.size) == (name, name, 0, (60, 40))
    assert page.words() is None
    image = page.image()
    assert (image.mode, image.size) == ("RGB", (60, 40))
    assert np.abs(pixels(image) - pixels(picture())).max() <= off


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp"])
def test_exif_orientation(saved, name, orientation):
    # How a camera held so would store the upright picture.
    stored = {
        1: [],
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    upright = picture()
    image = upright
    for turn in stored[orientation]:
        image = image.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} | ({"lossless": True} if name == "a.webp" else {})
    if name == "a.jpg":
        options |= {"quality": 95, "subsampling": 0}
    page = saved(image, name, **options)
    assert page.size == (60, 40)
    assert np.abs(pixels(page.image()) - pixels(upright)).max() <= 40
    assert page.image(30).size == (30, 20)


def test_exif_that_cannot_be_read_is_no_hindrance(tmp_path):
    data = io.BytesIO()
    picture().save(data, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(range(200)))
    (tmp_path / "a.jpg").write_bytes(data.getvalue())
    (page,) = open_pages(tmp_path / "a.jpg")
    assert page.size == page.image().size == (60, 40)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "I", "F", "I;16", "LA", "RGBA", "PA"])
def test_modes(tmp_path, mode):
    if mode == "I;16":
        image = Image.fromarray(np.asarray(picture("L")).astype(np.uint16) * 257)
    elif mode in ("I", "F"):
        image = Image.fromarray(np.asarray(picture("L")).astype(np.int32 if mode == "I" else np.float32))
    elif mode == "PA":
        image = picture("P").convert("PA")
    else:
        image = picture(mode)
    name = "a.png" if mode in ("1", "L", "P", "I;16", "LA", "RGBA") else "a.tif"
    image.save(tmp_path / name)
    (page,) = open_pages(tmp_path / name)
    expected = picture("RGB" if mode in ("P", "PA", "CMYK", "YCbCr", "RGBA") else "L")
    found, wanted = pixels(page.image()), pixels(expected)
    if mode == "1":
        assert set(np.unique(found)) == {0, 255}
        assert (found[-10:, -10:] == 255).all()
        assert (found[-5:, :5] == 0).all()
    else:
        assert np.abs(found - wanted).max() <= 3


def test_sixteen_bits_keep_their_scale(saved):
    shades = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    found = np.asarray(saved(Image.fromarray(shades)).image())[..., 0]
    np.testing.assert_allclose(found, shades / 257, atol=1)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_what_is_transparent_is_white(saved, mode):
    image = Image.new("RGBA", (20, 10), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (10, 0, 20, 10))
    if mode == "P":
        flat = Image.new("P", (20, 10), 0)
        flat.putpalette([0, 0, 0, 9, 9, 9])
        flat.paste(1, (10, 0, 20, 10))
        page = saved(flat, transparency=1)
    else:
        page = saved(image.convert(mode), "a.tif" if mode == "PA" else "a.png")
    found = pixels(page.image())
    assert (found[:, :10] == 0).all()
    assert (found[:, 10:] == 255).all()


def test_half_transparent_ink_is_half_as_dark(saved):
    found = pixels(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 128))).image())
    assert np.abs(found - 127).max() <= 1


def test_the_pages_of_a_tiff(tmp_path):
    frames = [picture(size=(60, 40)), picture("L", (30, 50)), picture("1", (20, 20))]
    frames[0].save(tmp_path / "fax.tiff", save_all=True, append_images=frames[1:])
    pages = open_pages(tmp_path / "fax.tiff")
    assert [page.id for page in pages] == ["fax.tiff#0", "fax.tiff#1", "fax.tiff#2"]
    assert [page.number for page in pages] == [0, 1, 2]
    assert [page.size for page in pages] == [(60, 40), (30, 50), (20, 20)]
    for page, frame in zip(reversed(pages), reversed(frames), strict=True):
        assert np.array_equal(pixels(page.image()), pixels(frame))


def test_a_tiff_turned_page_by_page(tmp_path):
    first, second = picture(), picture().transpose(Image.Transpose.ROTATE_90)
    second.encoderinfo = {"tiffinfo": {0x0112: 6}}
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    pages = open_pages(tmp_path / "a.tif")
    assert [page.size for page in pages] == [(60, 40), (60, 40)]
    for page in pages:
        assert np.array_equal(pixels(page.image()), pixels(first))


def test_previews_in_a_tiff_are_no_pages(tmp_path):
    preview = picture(size=(12, 8))
    preview.encoderinfo = {"tiffinfo": {254: 1}}
    picture().save(tmp_path / "a.tif", save_all=True, append_images=[preview])
    (page,) = open_pages(tmp_path / "a.tif")
    assert page.id == "a.tif"
    assert page.image().size == (60, 40)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_an_animation_is_its_first_frame(tmp_path, name):
    options = {"lossless": True} if name == "a.webp" else {}
    picture().save(tmp_path / name, save_all=True, append_images=[Image.new("RGB", (60, 40))], **options)
    (page,) = open_pages(tmp_path / name)
    assert page.id == name
    assert np.array_equal(pixels(page.image()), pixels(picture()))


def test_a_photograph_with_a_second_picture_in_it_is_one_page(tmp_path):
    picture().save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[picture("L").convert("RGB")])
    (page,) = open_pages(tmp_path / "a.jpg")
    assert np.abs(pixels(page.image()) - pixels(picture())).mean() < 15


def test_content_decides_where_the_name_is_wrong(tmp_path):
    picture().save(tmp_path / "a.jpg", format="PNG")
    (page,) = open_pages(tmp_path / "a.jpg")
    assert np.array_equal(pixels(page.image()), pixels(picture()))


@pytest.mark.parametrize(("longest", "size"), [(None, (900, 600)), (5000, (900, 600)), (90, (90, 60)), (1, (1, 1))])
@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_the_longer_side_is_bounded(saved, name, longest, size):
    whole = picture(size=(900, 600))
    image = saved(whole, name).image(longest)
    assert image.size == size
    if longest == 90:
        reduced = pixels(whole.resize(size, Image.Resampling.LANCZOS))
        assert np.abs(pixels(image) - reduced).mean() < 4


def written(image, **options):
    data = io.BytesIO()
    image.save(data, **options)
    return data.getvalue()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jpg", written(NOISE, format="JPEG")),
        ("a.jpg", written(NOISE, format="JPEG", progressive=True)),
        ("a.png", written(NOISE, format="PNG")),
        ("a.webp", written(NOISE, format="WEBP", lossless=True)),
        ("a.tif", written(NOISE, format="TIFF", compression="tiff_lzw")),
        ("a.gif", written(NOISE, format="GIF")),
        ("a.bmp", written(NOISE, format="BMP")),
    ],
)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_image_is_one_sentence(tmp_path, name, data, share):
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(PageError) as caught:
        open_pages(tmp_path / name)[0].image()
    assert caught.value.place == name
    assert "\n" not in str(caught.value)
    reported = []
    for page in open_pages(tmp_path / name, skipped=reported.append):
        with pytest.raises(PageError):
            page.image()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP"])
def test_damage_anywhere_is_a_picture_or_a_sentence(tmp_path, format):
    whole = written(NOISE.convert("P") if format == "GIF" else NOISE, format=format)
    rng = np.random.default_rng(1)
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(0, min(len(data), 600), 4):
            data[at] = rng.integers(0, 256)
        (tmp_path / "a.png").write_bytes(data)
        try:
            for page in open_pages(tmp_path / "a.png"):
                assert page.image(32).mode == "RGB"
        except PageError:
            continue


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"%PDF-1.7", bytes(100)])
def test_what_is_no_image_is_one_sentence(tmp_path, data):
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(PageError, match=r"a\.png: is (empty|no image)"):
        open_pages(tmp_path / "a.png")


def png_of_zeros(width, height):
    """A one-bit PNG of any size, in a few bytes for every million pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes((width + 7) // 8)
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_an_image_of_30000_by_30000_pixels_is_refused(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_of_zeros(30_000, 30_000))
    assert (tmp_path / "bomb.png").stat().st_size < 1e6
    with pytest.raises(PageError, match="has 30000 x 30000 pixels, more than"):
        open_pages(tmp_path / "bomb.png")


def test_an_image_of_30000_by_3000_pixels_is_read(tmp_path):
    (tmp_path / "long.png").write_bytes(png_of_zeros(30_000, 3_100))
    (page,) = open_pages(tmp_path / "long.png")
    assert page.size == (30_000, 3_100)
    assert page.image(300).size == (300, 31)


def test_a_tiff_beyond_pillows_warning_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    picture().save(tmp_path / "a.tif")
    assert open_pages(tmp_path / "a.tif")[0].image().size == (60, 40)


@pytest.mark.parametrize(("size", "decoded"), [((1400, 1000), (700, 500)), ((4000, 3000), (1000, 750))])
def test_a_huge_jpeg_is_decoded_smaller(saved, monkeypatch, size, decoded):
    monkeypatch.setattr(images, "_MOST_PIXELS", 1_000_000)
    page = saved(picture(size=size), "a.jpg")
    assert page.size == size
    assert page.image().size == decoded
    assert np.abs(pixels(page.image()) - pixels(picture(size=decoded))).mean() < 4
    assert page.image(100).size == (100, round(100 * size[1] / size[0]))


@pytest.mark.parametrize(("name", "options"), [("a.png", {}), ("a.tif", {}), ("a.jpg", {"progressive": True})])
def test_what_can_only_be_decoded_whole_is_refused(saved, monkeypatch, name, options):
    monkeypatch.setattr(images, "_MOST_PIXELS", 1_000_000)
    with pytest.raises(PageError, match="has 1400 x 1000 pixels"):
        saved(picture(size=(1400, 1000)), name, **options)


def test_a_huge_page_inside_a_tiff_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "_MOST_PIXELS", 1_000_000)
    picture().save(tmp_path / "a.tif", save_all=True, append_images=[picture(size=(1400, 1000))])
    with pytest.raises(PageError, match=r"a\.tif#1: has 1400 x 1000 pixels"):
        open_pages(tmp_path / "a.tif")


def test_a_changed_image_is_noticed(tmp_path, saved):
    page = saved(picture(), "a.png")
    picture("L").save(tmp_path / "a.png")
    with pytest.raises(PageError, match="has changed since it was listed"):
        page.image()


def test_listing_decodes_nothing(tmp_path):
    whole = written(NOISE, format="JPEG")
    for number in range(50):
        (tmp_path / f"{number}.jpg").write_bytes(whole[: len(whole) // 2])
    # Half a JPEG has a whole head: only reading it shows what is missing.
    assert [page.size for page in open_pages(tmp_path)] == [(64, 64)] * 50
